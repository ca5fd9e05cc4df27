"""Launches of several ranks as they are after they ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpurun.arguments.options import ScaleOptions
from gpurun.records.result import StepSplit
from gpurun.scaling.finished_launch import FinishedLaunch, LaunchCosts
from gpurun.scaling.launch_rounds import Measurements
from gpurun.scaling.rank_devices import CORES, RankDevices
from gpurun.scaling.scaling_document import MeasurementContext
from gpurun.scaling.scaling_requests import PlannedLaunch
from tests.unit.bench_launches import result

GPUS = RankDevices("NVIDIA H200", tuple("01234567"), 96.0)
CPU = RankDevices(CORES, (), 2.0)


def split(**parts: float) -> StepSplit:
    """Milliseconds of the parts that are named, 0 for the others."""
    plain = dict.fromkeys(StepSplit.__dataclass_fields__, 0.0)
    return StepSplit(**{**plain, **{f"{name}_ms": value for name, value in parts.items()}})


def launch(
    planned: PlannedLaunch,
    step_ms: float = 10.0,
    *,
    parts: StepSplit | None = None,
    imbalance: float | None = None,
    busiest: int | None = None,
    **changes: Any,
) -> FinishedLaunch:
    """One that was measured: 8 samples a rank and step; `changes` of its fields."""
    rate = planned.ranks * 8000 / step_ms
    seen = LaunchCosts(rate, rate, step_ms, parts, imbalance, 8.0, 50, busiest)
    known: dict[str, Any] = {
        "planned": planned,
        "result": result(rate),
        "figures": seen,
        "status": "measured",
        "error": None,
        "folder": Path("/runs/1/launches/01"),
        "seconds": 5.0,
        "distributed": None,
        "together": planned.ranks > 1,
        "switchable": planned.ranks > 1,
        "whole": False,
        "printed": (),
    }
    return FinishedLaunch(**{**known, **changes})


def failure(
    planned: PlannedLaunch, status: str = "failed", error: str = "exit code 7"
) -> FinishedLaunch:
    """One that is of no use."""
    return launch(planned, figures=None, status=status, error=error)


def measured(*launches: tuple[int, FinishedLaunch], rounds: int = 2) -> Measurements:
    """What was measured in so many rounds."""
    return Measurements(list(launches), steps=50, rounds=rounds)


def around(devices: RankDevices = GPUS, **changes: Any) -> MeasurementContext:
    """An undisturbed measurement."""
    known: dict[str, Any] = {
        "command": ("train.py",),
        "devices": devices,
        "distributed": None,
        "folder": Path("/runs/1"),
        "seconds": 60.0,
        "interrupted": False,
    }
    return MeasurementContext(**{**known, **changes})


def asked(*counts: int, **changes: Any) -> ScaleOptions:
    return ScaleOptions(counts=counts, **changes)
