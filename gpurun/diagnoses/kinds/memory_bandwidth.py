"""Kernels that move more data than they compute."""

from __future__ import annotations

from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, gain_without, kernel_figures, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.thresholds import gain_severity
from gpurun.formatting.kernel_names import short_kernel_name
from gpurun.records.finding import WARNING, Finding, FindingType
from gpurun.replay.what_ifs import Change
from gpurun.timeline.kernel_time import FUSABLE
from gpurun.timeline.model import Group, KernelMetrics

ADVICE = (
    "torch.compile fuses chains of elementwise operations: each value is read and written once",
    "bfloat16 halves the bytes that such kernels move",
    "use the fused forms: F.scaled_dot_product_attention, fused norms and optimizers",
)
MOVING = (*FUSABLE, Group.OPTIMIZER)
"""Kinds of kernels that wait for memory rather than for arithmetic."""
COMPUTING = 0.30
"""Tensor activity from which on full bandwidth feeds arithmetic and is as it should be."""


class MemoryBandwidth(Diagnosis):
    """The device's memory sets the pace.

    Replayed with chains of elementwise kernels, norms and reductions as one kernel: of those that
    visit as many elements in the same way the longest stays. Without a replay, the bound is the
    step less the time of the others. Also triggered by DRAM above 80 % of its peak while arithmetic
    units have time, and by such a kernel below 60 % of the bandwidth (Nsight Compute); a note
    beside a replay.
    """

    type: ClassVar[FindingType] = FindingType.MEMORY_BANDWIDTH
    sources: ClassVar[tuple[Source, ...]] = (Source.TIMELINE, Source.ACTIVITY, Source.KERNELS)
    thresholds: ClassVar[tuple[str, ...]] = (
        "dram_activity",
        "sm_throughput",
        "bandwidth_kernel",
    )

    def find(self, evidence: Evidence) -> Finding | None:
        """The bandwidth in use and the kernels that use it."""
        rate = evidence.thresholds.severity
        share, dram = elementwise_share(evidence), _dram_activity(evidence)
        fusable = evidence.figures.fusable_share
        kernel, by_kernel = _worst_kernel(evidence)
        by_counters = max(rate("dram_activity", dram), by_kernel)
        if evidence.replay is not None:
            by_counters = min(by_counters, WARNING / 2)
        replayed, bound = evidence.replayed_gain(Change.FUSION), gain_without(fusable)
        fused = gain_severity(replayed or bound or 1.0) >= by_counters
        if fused:
            text = (
                f"elementwise kernels, norms and reductions take {percent(share)} of the step; "
                f"{percent(fusable)} of it would go if their chains were fused"
            )
        elif kernel is not None and by_kernel == by_counters:
            text = f"{_said_of(kernel, evidence)}: {short_kernel_name(kernel.name)}"
        else:
            text = f"DRAM is active {percent(dram)} of the time"
        return self.finding(
            evidence,
            None if fused else by_counters,
            text,
            [
                figure("elementwise_share", share, Source.TIMELINE),
                figure("fusable_share", fusable, Source.TIMELINE),
                figure("dram_activity", dram, Source.ACTIVITY),
                *kernel_figures(kernel),
            ],
            ADVICE,
            knob="compile",
            replayed=replayed if fused else None,
            bound=bound if fused else None,
        )


def elementwise_share(evidence: Evidence) -> float | None:
    """The share of the step in elementwise kernels, norms and reductions; None if not known."""
    figures = evidence.figures
    if figures.group_shares is None or figures.kernel_share is None:
        return None
    shares = figures.group_shares
    computing = 1 - shares.get(Group.COMMUNICATION.value, 0.0)
    fusable = sum(shares.get(group.value, 0.0) for group in FUSABLE)
    return fusable / computing * figures.kernel_share if computing > 0 else 0.0


def _dram_activity(evidence: Evidence) -> float | None:
    """DRAM activity of the device; None where it is not known or feeds tensor cores."""
    for device in evidence.devices:
        dram, tensor = device.dram_activity_percent, device.tensor_activity_percent
        if dram is not None and (tensor or 0.0) / 100 < COMPUTING:
            return dram / 100
    return None


def _worst_kernel(evidence: Evidence) -> tuple[KernelMetrics | None, float]:
    """The kernel that suffers most from memory, and how much."""
    rate = evidence.thresholds.severity
    worst: tuple[KernelMetrics | None, float] = (None, 0.0)
    for kernel in evidence.weighty_kernels:
        if kernel.dram_percent is None:
            continue
        dram, sm = kernel.dram_percent / 100, kernel.sm_percent
        severity = min(
            rate("dram_activity", dram), rate("sm_throughput", None if sm is None else sm / 100)
        )
        if kernel.group in MOVING:
            severity = max(severity, rate("bandwidth_kernel", dram))
        worst = max(worst, (kernel, severity), key=lambda pair: pair[1])
    return worst


def _said_of(kernel: KernelMetrics, evidence: Evidence) -> str:
    used = (kernel.dram_percent or 0.0) / 100
    if evidence.thresholds.severity("dram_activity", used) >= WARNING:
        return f"a kernel waits for memory, DRAM throughput is {percent(used)}"
    return f"a kernel that moves data uses {percent(used)} of the memory's bandwidth"
