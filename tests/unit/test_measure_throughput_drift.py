"""Drift in a run folder: of full runs, on the clock that tells the truth, without a slow start."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from gpurun.measure import summarise_run
from gpurun.records.events import StepsEvent, StopEvent
from gpurun.records.result import RunResult
from tests.unit.recorded_runs import MS, START_NS, loader, row, steps, write_events


def summary(run_dir: Path, events: list[Any]) -> RunResult:
    write_events(run_dir, [loader(), *events])
    return summarise_run(run_dir, exit_code=0, wall_seconds=3.0)


def of_lengths(*parts: tuple[int, float]) -> StepsEvent:
    """So many steps of so many milliseconds, one part after the other."""
    lengths = [ms for count, ms in parts for _ in range(count)]
    return steps([row(end) for end in accumulate(lengths, initial=1000.0)])


def test_a_slowdown_stands_in_the_result_and_in_a_note(tmp_path: Path) -> None:
    result = summary(tmp_path, [of_lengths((500, 200), (500, 250))])
    assert result.throughput_drift is not None
    assert result.throughput_drift.change == pytest.approx(-0.2)
    assert (
        "throughput fell by 20.0 % within the run: a step took 200 ms in its first quarter, "
        "250 ms in its last" in result.notes
    )


def test_a_slow_start_is_warm_up(tmp_path: Path) -> None:
    assert summary(tmp_path, [of_lengths((300, 250), (700, 200))]).throughput_drift is None


def test_a_long_run_that_becomes_faster_late_says_so(tmp_path: Path) -> None:
    result = summary(tmp_path, [of_lengths((700, 250), (300, 200))])
    assert result.throughput_drift is not None
    assert result.throughput_drift.change == pytest.approx(0.25)


@pytest.mark.parametrize(
    "parts", [[(1000, 200)], [(300, 200), (300, 205), (5, 4000)], [(60, 900)] * 3]
)
def test_a_steady_or_short_run_says_nothing(tmp_path: Path, parts: list[tuple[int, float]]) -> None:
    assert summary(tmp_path, [of_lengths(*parts)]).throughput_drift is None


@pytest.mark.parametrize("more", [{"samples": {0: (16, 1)}}, {"tokens": 2048}])
def test_steps_with_larger_batches_are_not_slower(tmp_path: Path, more: dict[str, Any]) -> None:
    rows = [row(1000 + 200 * i, tokens=1024) for i in range(500)]
    rows += [row(101_000 + 300 * i, **{"tokens": 1024, **more}) for i in range(500)]
    assert summary(tmp_path, [steps(rows)]).throughput_drift is None


def test_a_trial_says_nothing(tmp_path: Path) -> None:
    stop = StopEvent("enough", 1000, START_NS, START_NS + 10**9 * MS)
    assert summary(tmp_path, [of_lengths((500, 200), (500, 250)), stop]).throughput_drift is None
