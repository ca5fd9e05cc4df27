"""The course of a comparison: whose turn it is, when it ends, and which pair is taken again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gpurun.bench.benchmark_launcher import Launch, Launcher
from gpurun.bench.compare.pair_runner import Findings, PairRunner
from gpurun.bench.trees.prepared_sides import BASELINE, CURRENT, Side
from gpurun.errors import ExitCode, GpurunError
from gpurun.isolation.isolation_mode import Mode
from gpurun.pairs.gate import GatePlan, Verdict
from gpurun.records.bench.metrics import Metric
from gpurun.records.spec import StopRule
from tests.unit.bench_launches import BENCHMARK, device, launch, sides_below

PYTHON = Path("/usr/bin/python")


class Recorded(Launcher):
    """Gives back what launches are known to have come to, by side, and remembers the turns."""

    def __init__(self, folder: Path, baseline: list[Launch], current: list[Launch]) -> None:
        super().__init__(BENCHMARK, folder, Mode.IN_PLACE, print)
        self.turns = ""
        self.coming = {BASELINE: baseline, CURRENT: current}

    def run(self, start: Side, rule: StopRule, *, first: bool = False) -> Launch:
        self.turns += start.name[0]
        coming = self.coming[start.name]
        return coming.pop(0) if len(coming) > 1 else coming[0]


def comparing(
    folder: Path, baseline: list[Launch], current: list[Launch], **more: Any
) -> tuple[PairRunner, Recorded, Findings]:
    launcher, findings = Recorded(folder, baseline, current), Findings()
    sides = sides_below(folder)
    one = PairRunner(sides, BENCHMARK, launcher, GatePlan(), findings, print, **more)
    return one, launcher, findings


def test_the_sides_take_turns_after_a_first_launch_of_each(tmp_path: Path) -> None:
    one, launcher, findings = comparing(
        tmp_path, [launch(BASELINE, 1000.0)], [launch(CURRENT, 800.0)]
    )
    one.run()
    pairs = findings.figures(Metric.THROUGHPUT)
    assert 3 <= len(pairs) <= 4
    assert launcher.turns == "bc" + "bccbbccb"[: 2 * len(pairs)]
    assert findings.verdict is Verdict.REGRESSION
    assert set(pairs) == {(1000.0, 800.0)}


def test_a_disturbed_pair_is_launched_again_and_counts_if_it_is_always_so(tmp_path: Path) -> None:
    hot = launch(CURRENT, 500.0, devices=(device("thermal"),))
    calm = launch(CURRENT, 1000.0)
    one, launcher, findings = comparing(tmp_path, [launch(BASELINE, 1000.0)], [calm, hot, calm])
    one.run()
    assert findings.verdict is Verdict.PASS
    pairs = findings.figures(Metric.THROUGHPUT)
    assert set(pairs) == {(1000.0, 1000.0)}
    assert len(launcher.turns) == 2 + 2 + 2 * len(pairs)
    hotter = "the GPU was throttled in the current half only (thermal)"
    assert findings.notes == [f"pair 1 is measured again: {hotter}"]

    one, launcher, findings = comparing(tmp_path, [launch(BASELINE, 1000.0)], [hot])
    one.run()
    assert findings.verdict is Verdict.REGRESSION
    assert findings.notes[-1].startswith(f"pair {len(findings.pairs)} counts")
    assert findings.notes[-1].endswith(hotter)


def test_time_that_is_up_leaves_it_undecided(tmp_path: Path) -> None:
    one, launcher, findings = comparing(
        tmp_path, [launch(BASELINE, 1000.0)], [launch(CURRENT, 800.0)], deadline=time.monotonic()
    )
    one.run()
    assert (launcher.turns, findings.verdict) == ("bc", Verdict.INCONCLUSIVE)
    assert findings.ended == "the budget ended after 0 pairs"


def test_what_a_first_launch_took_to_warm_up_does_not_end_it(tmp_path: Path) -> None:
    """Of a cold machine: it compiled and downloaded for minutes."""
    for left, begins in ((100.0, True), (0.0, False)):
        one, launcher, findings = comparing(
            tmp_path,
            [launch(BASELINE, 1000.0)],
            [launch(CURRENT, 800.0)],
            deadline=time.monotonic() + left,
        )
        launcher.trials.longest = 170.0
        one.run()
        assert bool(findings.pairs) is begins
        assert (findings.ended is None) is begins


def test_no_disturbed_pair_is_launched_again_after_the_deadline(tmp_path: Path) -> None:
    hot = launch(CURRENT, 500.0, devices=(device("thermal"),))
    one, launcher, findings = comparing(tmp_path, [launch(BASELINE, 1000.0)], [hot])
    launches = launcher.run

    def run(*words: Any, **named: Any) -> Launch:
        if len(launcher.turns) == 3:
            one.deadline = 0.0
        return launches(*words, **named)

    launcher.run = run  # type: ignore[method-assign]
    one.run()
    assert (launcher.turns, len(findings.pairs)) == ("bcbc", 1)


def test_a_benchmark_of_which_no_gated_figure_was_measured_fails_and_says_so(
    tmp_path: Path,
) -> None:
    lacking: Any = dict.fromkeys(("samples_per_second", "step_time_ms", "peak_memory_bytes"))
    sides = ([launch(name, 1000.0, **lacking)] for name in (BASELINE, CURRENT))
    one, _, findings = comparing(tmp_path, *sides)
    with pytest.raises(GpurunError, match="none of the gated metrics was measured") as raised:
        one.run()
    assert raised.value.code is ExitCode.BENCHMARK_FAILED
    assert "throughput was not measured here and is not gated" in findings.notes


def test_a_script_that_is_new_has_no_baseline(tmp_path: Path) -> None:
    one, launcher, _ = comparing(tmp_path, [launch(BASELINE, 1.0)], [launch(CURRENT, 1.0)])
    (tmp_path / BASELINE / BENCHMARK.script).unlink()
    with pytest.raises(GpurunError, match=r"the baseline has no script train\.py") as raised:
        one.run()
    assert (raised.value.code, launcher.turns) == (ExitCode.NO_BASELINE, "")


def test_a_baseline_that_fails_alone_may_miss_a_file_that_git_does_not_hold(tmp_path: Path) -> None:
    crashed = launch(BASELINE, 1.0, error="FileNotFoundError: data/a.bin", status="failed")
    one, _, _ = comparing(tmp_path, [crashed], [launch(CURRENT, 1.0)])
    with pytest.raises(GpurunError, match="failed on the baseline side") as raised:
        one.run()
    assert "needed = " in raised.value.todo


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (device(foreign=2), "another process computed on the GPU throughout"),
        (device("thermal", "power"), "the GPU was throttled (power, thermal)"),
    ],
)
def test_what_befell_both_halves_is_told_once(tmp_path: Path, state: Any, told: str) -> None:
    sides = [launch(side, 1000.0, devices=(state,)) for side in (BASELINE, CURRENT)]
    one, _, findings = comparing(tmp_path, sides[:1], sides[1:])
    one.run()
    assert findings.notes == [told]
    assert findings.verdict is Verdict.PASS


def test_a_side_that_fails_in_a_pair_is_named_with_it(tmp_path: Path) -> None:
    crashed = launch(CURRENT, 1.0, error="ValueError: no", status="failed")
    fine = launch(CURRENT, 1000.0)
    one, _, findings = comparing(tmp_path, [launch(BASELINE, 1000.0)], [fine, fine, crashed])
    with pytest.raises(GpurunError) as raised:
        one.run()
    assert raised.value.code is ExitCode.BENCHMARK_FAILED
    assert "failed on the current side in pair 2: ValueError: no" in raised.value.what
    assert [x.error for x in findings.launches(CURRENT)] == ["", "ValueError: no"]
    assert len(findings.launches(BASELINE)) == 1


def test_a_launch_that_fails_by_chance_is_launched_again_and_told(tmp_path: Path) -> None:
    crashed = launch(CURRENT, 1.0, error="OSError: no route to host", status="failed")
    fine = launch(CURRENT, 1000.0)
    one, launcher, findings = comparing(
        tmp_path, [launch(BASELINE, 1000.0)], [fine, fine, crashed, fine]
    )
    one.run()
    assert findings.verdict is Verdict.PASS
    assert launcher.turns.startswith("bcbcccb")
    told = "a current launch failed, and is launched again: OSError: no route to host"
    assert told in findings.notes


def test_memory_that_nobody_measured_is_not_gated_unless_it_was_asked_for(tmp_path: Path) -> None:
    bare = [launch(side, 1000.0, peak_memory_bytes=None) for side in (BASELINE, CURRENT)]
    one, _, findings = comparing(tmp_path, bare[:1], bare[1:])
    one.run()
    assert list(findings.gated) == [Metric.THROUGHPUT]
    assert findings.notes == ["peak_memory was not measured here and is not gated"]

    one, _, findings = comparing(tmp_path, [launch(BASELINE, 1000.0)], bare[1:])
    with pytest.raises(GpurunError, match="peak_memory was not measured on the current side"):
        one.run()
