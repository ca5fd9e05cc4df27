"""Launches of a benchmark as they are after they ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gpurun.bench.benchmark_launcher import Launch
from gpurun.bench.benchmarks import GATED, Benchmark
from gpurun.bench.trees.installed_packages import Tree
from gpurun.bench.trees.prepared_sides import BASELINE, CURRENT, Side, Sides
from gpurun.records.events import OriginsEvent
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.result import DeviceUse, RunResult, StepTime
from tests.repositories import new_repository

BENCHMARK = Benchmark(
    name="train|er",
    folder=Path("/project"),
    script="train.py",
    args=(),
    steps=50,
    setup=None,
    env={},
    needed=(),
    metrics=GATED,
    thresholds={m: m.default_threshold for m in GATED},
)
OWN_TREE = OriginsEvent((), (), (), (), complete=True)


def sides_below(folder: Path, python: Path = Path("/usr/bin/python")) -> Sides:
    """Two sides with the script, each a repository."""
    baseline, current = (
        Side(name, "a" * 40, Tree(folder / name), folder / name, python, {})
        for name in (BASELINE, CURRENT)
    )
    for side in (baseline, current):
        if not side.folder.exists():
            new_repository(side.folder)
        (side.folder / BENCHMARK.script).touch()
    return Sides(baseline, current, current.tree)


def result(rate: float, **changes: Any) -> RunResult:
    """That of a launch of 50 measured steps of 8 samples, `rate` samples a second."""
    step = 8000 / rate
    known = {
        "status": "stopped",
        "steps": 60,
        "measured_steps": 50,
        "samples_per_second": rate,
        "batch_size": 8.0,
        "step_time_ms": StepTime(step, step, step, step),
        "peak_memory_bytes": 1 << 30,
        "devices": (),
        "environment": {"torch": "2.13.0"},
        "ranks": 1,
    }
    unmeasured = dict.fromkeys(RunResult.__dataclass_fields__)
    return RunResult(**{**unmeasured, **known, **changes})  # type: ignore[arg-type]


def launch(
    side: str, rate: float, *, parameters: int = 100, error: str = "", **changes: Any
) -> Launch:
    """A launch of a side, "baseline" or "current"."""
    start = Side(side, "", Tree(Path("/project")), Path("/project"), Path("/usr/bin/python"), {})
    made, failure = result(rate, **changes), None
    if error:
        failure = Failure(FailureKind.EXCEPTION, error)
    folder, origins = Path("/runs/1"), (OWN_TREE,)
    return Launch(start, made, error, folder, 5.0, parameters, origins, failure=failure)


def device(*reasons: str, foreign: int | None = None) -> DeviceUse:
    """A GPU that was throttled for these reasons."""
    figures = dict.fromkeys(DeviceUse.__dataclass_fields__)
    known = {"device": "H", "throttle_reasons": reasons, "foreign_processes": foreign}
    return DeviceUse(**{**figures, **known, "refused": ()})  # type: ignore[arg-type]


def on_gpu(active_percent: float | None) -> dict[str, Any]:
    """The figures of a training on a GPU that works for so much of the time; None: not measured."""
    gpu = replace(device(), graphics_activity_percent=active_percent)
    return {"devices": (gpu,), "peak_reserved_bytes": 1 << 30}
