"""Findings from the records of a whole run: memory that grows, steps that are long now and then."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from gpurun.diagnoses.evidence import Evidence
from gpurun.diagnoses.kinds.whole_run import growth, long_steps
from gpurun.diagnoses.run_evidence import evidence_of_run
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.records.codec import to_json
from gpurun.records.finding import Finding, FindingType
from gpurun.records.result import KnobOutcome
from gpurun.records.samples import HostSample
from tests.unit.diagnosis_cases import found, healthy_cpu, healthy_gpu, sample
from tests.unit.recorded_runs import MS, UNIX_NS, loader, root, row, steps, write_events

GIB = 1 << 30


def run_of(
    folder: Path, lengths: Sequence[float], data: Callable[[int], float] = lambda _: 1
) -> Evidence:
    """A run whose steps take so many milliseconds."""
    ends = accumulate(lengths, initial=1000.0)
    rows = [row(end, data_ms=data(number)) for number, end in enumerate(ends)]
    write_events(folder, [root(), loader(), steps(rows)])
    return evidence_of_run(folder, Thresholds())


def every(period: int, long: float, count: int = 200) -> list[float]:
    return [long if number % period == 0 else 10.0 for number in range(1, count)]


def test_steps_that_are_long_every_so_often_are_named_with_their_cost(tmp_path: Path) -> None:
    evidence = run_of(tmp_path, every(20, 110.0))
    finding = found(evidence, FindingType.PERIODIC_STEPS)
    assert finding is not None
    assert finding.description.startswith("every 20 steps one takes 11.0 times the usual step")
    assert finding.gain_upper_bound == pytest.approx(1.5, abs=0.1)


def test_long_steps_at_the_ends_of_epochs_are_those_of_the_epoch(tmp_path: Path) -> None:
    evidence = run_of(tmp_path, every(100, 400.0, 700))
    finding = found(evidence, FindingType.PERIODIC_STEPS)
    assert finding is not None
    assert finding.description.startswith("at each epoch's end one takes")
    assert "persistent_workers" in finding.recommendations[0]


@pytest.mark.parametrize(
    ("lengths", "data"),
    [
        ([10.0] * 200, lambda number: 1),
        (every(20, 12.0), lambda number: 1),
        (every(20, 110.0), lambda number: 101 if number % 20 == 0 else 1),
        ([110.0 if n in (3, 17, 60, 61, 90, 150) else 10.0 for n in range(200)], lambda number: 1),
    ],
    ids=["alike", "hardly longer", "waits for data", "at random"],
)
def test_other_steps_have_no_pattern(
    tmp_path: Path, lengths: list[float], data: Callable[[int], float]
) -> None:
    assert long_steps(run_of(tmp_path, lengths, data).window) is None


def host(gigabytes: Sequence[float]) -> tuple[HostSample, ...]:
    return tuple(HostSample(n, 0.0, int(held * GIB), 3) for n, held in enumerate(gigabytes))


def test_memory_of_the_host_that_grows_is_told_by_the_step(tmp_path: Path) -> None:
    grown = host([1 + n / 20 for n in range(20)])
    evidence = replace(run_of(tmp_path, [1000.0] * 200), host_samples=grown)
    finding = found(evidence, FindingType.MEMORY_GROWTH)
    assert finding is not None
    assert finding.description.startswith("memory of the script's processes grows by ")
    assert finding.level == "critical"
    short = replace(evidence, window=run_of(tmp_path, [10.0] * 200).window)
    finding = found(short, FindingType.MEMORY_GROWTH)
    assert finding is not None
    assert finding.level == "note", "it may only be filling its caches"


def test_memory_of_a_device_that_grows_says_when_it_is_full(tmp_path: Path) -> None:
    window = run_of(tmp_path, [10.0] * 200).window
    used = [
        replace(sample(), memory_used_bytes=(20 + n) * GIB, memory_total_bytes=80 * GIB)
        for n in range(16)
    ]
    finding = found(
        healthy_gpu(window=window, device_samples=tuple(used)), FindingType.MEMORY_GROWTH
    )
    assert finding is not None
    assert "memory of the device grows by " in finding.description
    assert "more steps" in finding.description


@pytest.mark.parametrize(
    "held",
    [
        [1.0] * 40,
        [1.0] * 4 + [2.0] * 36,
        [1.0] * 10 + [2.0] * 10 + [2.1] * 10 + [2.2] * 10,
        [1 + n % 2 for n in range(40)],
        [1 + n / 20 for n in range(8)],
        [1 + n / 1000 for n in range(40)],
    ],
    ids=["steady", "grows at first", "levels off", "up and down", "few samples", "hardly"],
)
def test_memory_that_does_not_grow_gradually_is_no_finding(
    tmp_path: Path, held: list[float]
) -> None:
    evidence = replace(run_of(tmp_path, [10.0] * 200), host_samples=host(held))
    assert found(evidence, FindingType.MEMORY_GROWTH) is None


def test_growth_is_a_share_of_what_there_was() -> None:
    assert growth([10] * 5 + [11] * 5 + [12] * 5 + [15] * 5) == pytest.approx(0.5)


def test_samples_of_a_run_outside_of_its_measured_steps_do_not_count(tmp_path: Path) -> None:
    lines = [
        json.dumps({"event": "host", **to_json(replace(each, unix_time_ns=UNIX_NS + at * MS))})
        for at in (10, 1500, 2000)
        for each in host([1.0])
    ]
    (tmp_path / "samples.jsonl").write_text("\n".join(lines) + "\n")
    assert len(run_of(tmp_path, [10.0] * 200).host_samples) == 2


def changing(tmp_path: Path, **changes: Any) -> Finding | None:
    window = run_of(tmp_path, every(13, 40.0)).window
    traits = {"changing_shapes": "9 shapes in 20 calls", **changes.pop("traits", {})}
    evidence = healthy_cpu(window=window, traits=traits, **changes)
    return found(evidence, FindingType.CHANGING_SHAPES)


def test_many_shapes_matter_where_something_is_compiled(tmp_path: Path) -> None:
    assert changing(tmp_path) is None
    finding = changing(tmp_path, traits={"compile": "train.py:9"})
    assert finding is not None
    assert "9 shapes in 20 calls" in finding.description
    assert "drop_last=True" in finding.recommendations[0]
    result = replace(
        healthy_cpu().result,
        knobs=(KnobOutcome("compile", "applied", ""),),  # type: ignore[type-var]
    )
    assert changing(tmp_path, result=result) is not None
