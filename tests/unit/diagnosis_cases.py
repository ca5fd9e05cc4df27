"""Evidence made by hand: a healthy training, of which each test spoils one thing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpurun.diagnoses.diagnosis_report import diagnose
from gpurun.diagnoses.evidence import Evidence
from gpurun.records.events import LoaderEvent, RootEvent
from gpurun.records.finding import Finding, FindingType
from gpurun.records.messages.profile_events import FunctionSamples
from gpurun.records.profile_figures import (
    CopyShare,
    IdleTime,
    KernelShare,
    LaunchFigures,
    PrecisionFigures,
    ProfileFigures,
    SyncFigures,
)
from gpurun.records.result import DeviceUse, HostUse, RunResult, StepSplit, StepTime
from gpurun.records.samples import DeviceSample
from gpurun.timeline.model import (
    Device,
    Group,
    KernelMetrics,
    Phase,
    Timeline,
)

SPLIT = StepSplit(0.1, None, 3.0, 5.0, 1.0, 0.9)
IDLE = IdleTime(0.02, 0.0, 0.0, 0.01, 0.005, 0.005)
FIGURES = ProfileFigures(
    steps=10,
    step_ms=10.0,
    kernel_share=0.97,
    idle=IDLE,
    copies=(CopyShare("h2d", False, 0.02, 0.0, 2, 1e6),),
    launches=LaunchFigures(300, 32.0, 40, 0.05, 0.0),
    syncs=SyncFigures(0.0, 0.0),
    precision=PrecisionFigures(0.98, 0.01),
    group_shares={"matmul": 0.8, "elementwise": 0.2},
    top_kernels=(KernelShare("hgemm", "matmul", 0.3, 40, 75.0, True),),
)
ROOT = RootEvent(
    0, "Net", 10, 40, ("float32",), "cuda:0", {"Linear": 4}, (64, 3), "float32", False, (9, 0)
)


def result(split: StepSplit | None = SPLIT, **changes: Any) -> RunResult:
    empty: dict[str, Any] = dict.fromkeys(
        (
            "epoch_seconds", "samples", "tokens_per_second", "peak_memory_bytes",
            "peak_reserved_bytes", "allocator_retries", "gpu_utilization_percent",
            "gpu_utilization_source", "energy_joules", "joules_per_sample", "final_loss",
            "seconds_to_first_step",
        )
    )  # fmt: skip
    whole = RunResult(
        status="completed",
        exit_code=0,
        clock="optimizer",
        steps=100,
        warmup_steps=10,
        measured_steps=90,
        measured_seconds=0.9,
        samples_per_second=6400.0,
        batch_size=64.0,
        step_time_ms=StepTime(10.0, 10.0, 11.0, 12.0),
        split=split,
        host=HostUse(100.0, 8.0, 1 << 30, 1),
        devices=(),
        wall_seconds=5.0,
        **empty,
    )
    return replace(whole, **changes)


def gpu(**changes: Any) -> DeviceUse:
    use = DeviceUse(
        device="NVIDIA H200",
        uuid="GPU-1",
        gpu_utilization_percent=95.0,
        gpu_utilization_source="gpm_sm_activity",
        sm_activity_percent=92.0,
        tensor_activity_percent=50.0,
        dram_activity_percent=40.0,
        graphics_activity_percent=98.0,
        memory_used_bytes=80 << 30,
        memory_total_bytes=100 << 30,
        power_watts=600.0,
        energy_joules=3000.0,
        temperature_celsius=60.0,
        sm_clock_mhz=1900.0,
        throttle_reasons=(),
        foreign_processes=0,
        window_seconds=5.0,
    )
    return replace(use, **changes)


def sample(reasons: Sequence[str] = (), clock: float = 1900.0) -> DeviceSample:
    return DeviceSample(
        0, "GPU-1", "NVIDIA H200", 0, 95.0, 1, 2, 600.0, 1.0, 60.0, clock, tuple(reasons), 0,
        98.0, 92.0, 50.0, 40.0,
    )  # fmt: skip


def loader(workers: int = 4) -> LoaderEvent:
    return LoaderEvent(
        0, "train.py:31#0", "DataLoader", False, "Images", 800, 100, 64, workers, None, False,
        False, False, False, False, None, None, True,
    )  # fmt: skip


def healthy_gpu(figures: ProfileFigures = FIGURES, **changes: Any) -> Evidence:
    evidence = Evidence(
        result=result(devices=(gpu(),)),
        figures=figures,
        roots=(ROOT,),
        loaders=(loader(),),
        device_samples=(sample(), sample()),
        threads=8,
    )
    return replace(evidence, **changes)


def healthy_cpu(split: StepSplit = SPLIT, **changes: Any) -> Evidence:
    evidence = Evidence(
        result=result(split),
        roots=(replace(ROOT, device="cpu", compute_capability=None),),
        loaders=(loader(workers=0),),
        threads=2,
    )
    return replace(evidence, **changes)


def profiled(functions: Sequence[FunctionSamples], **parts: Any) -> Timeline:
    return Timeline(
        ("host",), 0, 10**9, host_functions=functions, host_sampled_seconds=1.0, **parts
    )


def function(
    name: str,
    own_seconds: float,
    total: float | None = None,
    phase: Phase | None = None,
    users_own: bool = True,
    file: str = "/home/me/train.py",
    line: int = 12,
) -> FunctionSamples:
    total = own_seconds if total is None else total
    part = None if phase is None else phase.value
    return FunctionSamples(file, line, name, part, users_own, own_seconds, total, None)


def kernel(**changes: Any) -> KernelMetrics:
    whole = KernelMetrics(
        name="my_kernel",
        group=Group.OTHER,
        duration_ns=100_000.0,
        grid=(1000, 1, 1),
        block=(256, 1, 1),
        registers=64,
        shared_memory_bytes=0,
        sm_percent=85.0,
        dram_percent=50.0,
        occupancy_percent=60.0,
        theoretical_occupancy_percent=75.0,
        branch_efficiency_percent=98.0,
        occupancy_limits={"registers": 8.0, "shared_memory": 16.0, "block_size": 9.0},
    )
    return replace(whole, **changes)


def measured_kernels(*kernels: KernelMetrics) -> Timeline:
    devices = [Device(0, "NVIDIA H200", 132)]
    return Timeline(("ncu",), 0, 0, kernel_metrics=kernels, devices=devices)


def first(evidence: Evidence) -> Finding:
    return diagnose(evidence)[0]


def found(evidence: Evidence, kind: FindingType) -> Finding | None:
    return next((f for f in diagnose(evidence) if f.type is kind), None)


def gains_beyond_their_share(findings: Sequence[Finding]) -> list[str]:
    """Findings whose gain is larger than the share of the step that their sentence tells."""
    found = []
    for finding in findings:
        told = re.search(r"(\d+(?:\.\d)?) % of (it|the step|the time)", finding.description)
        gain = finding.replayed_gain or finding.gain_upper_bound
        if told is None or gain is None:
            continue
        half_a_digit = 0.0005 if "." in told[1] else 0.005
        share = float(told[1]) / 100 + half_a_digit
        if share < 1 and gain > 1.02 / (1 - share):
            found.append(f"x{gain}: {finding.description}")
    return found
