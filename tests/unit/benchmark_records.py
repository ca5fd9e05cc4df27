"""Records of benchmarks for the tests of what keeps them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from gpurun.records.bench.benchmark import (
    BenchmarkFingerprint,
    BenchmarkLaunch,
    BenchmarkRecord,
    utc_text,
)
from gpurun.records.result import StepTime

START = datetime(2026, 11, 1, 12, tzinfo=timezone.utc)
FINGERPRINT = BenchmarkFingerprint(
    device="NVIDIA H200",
    device_count=1,
    driver="570.86",
    torch="2.13.0",
    script="train.py",
    settings={"tf32": True},
)
STEP = StepTime(mean=10.0, p50=9.5, p95=12.0, p99=15.0)
LAUNCH = BenchmarkLaunch(
    status="completed",
    samples_per_second=1000.0,
    step_time_ms=STEP,
    gpu_utilization_percent=81.5,
    gpu_utilization_source="gpm_sm_activity",
    peak_memory_bytes=3 << 30,
    energy_joules=None,
    joules_per_sample=None,
    measured_steps=50,
    measured_seconds=0.5,
)
CRASHED = replace(
    LAUNCH,
    status="failed",
    samples_per_second=None,
    step_time_ms=None,
    gpu_utilization_percent=None,
    gpu_utilization_source=None,
    peak_memory_bytes=None,
    measured_steps=None,
    measured_seconds=None,
    error="exit code 1: out of memory",
)


def record(number: int = 0, **changes: Any) -> BenchmarkRecord:
    """The record of hour `number`; nobody measured its energy."""
    made = BenchmarkRecord(
        id=f"r{number:04}",
        benchmark="vision",
        script="train.py",
        args=("--epochs", "1"),
        commit=f"{number:040x}",
        branch="main",
        dirty=False,
        time=utc_text(START + timedelta(hours=number)),
        status="completed",
        samples_per_second=1000.0 + number,
        step_time_ms=STEP,
        gpu_utilization_percent=81.5,
        gpu_utilization_source="gpm_sm_activity",
        peak_memory_bytes=3 << 30,
        energy_joules=None,
        joules_per_sample=None,
        device="NVIDIA H200",
        device_count=1,
        batch_size=32.0,
        steps=60,
        launches=(LAUNCH, CRASHED),
        fingerprint=FINGERPRINT,
        gpurun_version="0.1.0",
    )
    return replace(made, **changes)
