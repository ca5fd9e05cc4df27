"""Kernels do their work the slow way: outside tensor cores, or once more through the memory."""

from __future__ import annotations

from gpurun.diagnoses.api import (
    NOTICEABLE,
    Seen,
    diagnosis,
    gain_without,
    measured,
    percent,
    share_without,
)
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.kinds.kernel_efficiency import share, worst_kernel
from gpurun.diagnoses.thresholds import gain_severity
from gpurun.records.finding import WARNING, FindingType
from gpurun.replay.what_ifs import PEAK_RATIOS, Change
from gpurun.timeline.kernel_time import FUSABLE
from gpurun.timeline.model import Group, KernelMetrics

ADVICE_PRECISION = (
    "autocast to bfloat16: torch.autocast('cuda', dtype=torch.bfloat16) around the forward pass",
    "allow TF32: torch.set_float32_matmul_precision('high'); the same code, other rounding",
)
ADVICE_MEMORY = (
    "torch.compile fuses chains of elementwise operations: each value is read and written once",
    "bfloat16 halves the bytes that such kernels move",
    "use the fused forms: F.scaled_dot_product_attention, fused norms and optimizers",
)
UNUSED, WORKING = 0.05, 0.30
"""Tensor and SM activity that tell without a timeline: the one below, the other above."""
MULTIPLIES = ("Linear", "Conv1d", "Conv2d", "Conv3d", "MultiheadAttention", "LSTM", "GRU")
MOVING = (*FUSABLE, Group.OPTIMIZER)
"""Kinds of kernels that wait for memory rather than for arithmetic."""
COMPUTING = 0.30
"""Tensor activity from which on full bandwidth feeds arithmetic and is as it should be."""


@diagnosis(FindingType.PRECISION, Source.TIMELINE, Source.ACTIVITY, change=Change.PRECISION)
def tensor_core_use(evidence: Evidence) -> Seen | None:
    """Matrix products, convolutions or attention run outside tensor cores.

    Replayed with such kernels at the ratio of the device's peaks: a roofline. Without a replay, the
    bound is the same roofline. Without a timeline, tensor activity near zero on a busy device is a
    warning without a bound.
    """
    capability = _capability(evidence)
    if capability is not None and capability < (7, 0):
        return None  # there are no tensor cores
    precision = evidence.figures.precision
    if precision is None:
        return _by_activity(evidence)
    outside = precision.outside_share_of_window
    ratio = None if capability is None else PEAK_RATIOS.get(capability)
    gain = gain_without(outside * (1 - 1 / (ratio or min(PEAK_RATIOS.values()))))
    return Seen(
        "matrix products and convolutions outside tensor cores take {share} of the step",
        measured(
            Source.TIMELINE,
            outside_tensor_cores_share=outside,
            tensor_core_share=precision.tensor_core_share,
            peak_ratio=ratio,
        ),
        ADVICE_PRECISION,
        severity=gain_severity(gain or 1.0),
        knob="autocast",
        bound=None if ratio is None else gain,
        share=outside,
    )


def _by_activity(evidence: Evidence) -> Seen | None:
    tensor, activity = evidence.activity("tensor_activity_percent"), evidence.sm_activity
    multiplies = any(kind in root.module_types for root in evidence.roots for kind in MULTIPLIES)
    if tensor is None or activity is None or not multiplies:
        return None
    if tensor >= UNUSED or activity < WORKING:
        return None
    return Seen(
        f"tensor cores are active {percent(tensor)} of the time, SMs {percent(activity)}",
        measured(Source.ACTIVITY, tensor_activity=tensor, sm_activity=activity),
        ADVICE_PRECISION,
        severity=WARNING,
        knob="autocast",
    )


def _capability(evidence: Evidence) -> tuple[int, int] | None:
    known = [r.compute_capability for r in evidence.roots if r.compute_capability is not None]
    if not known and evidence.timeline is not None:
        known = [d.capability for d in evidence.timeline.devices or () if d.capability is not None]
    return min(known, default=None)


@diagnosis(
    FindingType.MEMORY_BANDWIDTH, Source.TIMELINE, Source.ACTIVITY, Source.KERNELS,
    thresholds=("dram_activity", "sm_throughput", "bandwidth_kernel"),
)  # fmt: skip
def memory_bandwidth(evidence: Evidence) -> Seen | None:
    """The device's memory sets the pace.

    Replayed with chains of elementwise kernels, norms and reductions as one kernel: of those that
    visit as many elements in the same way the longest stays. Without a replay, the bound is the
    step less the time of the others. Also triggered by DRAM above 80 % of its peak while arithmetic
    units have time, and by such a kernel below 60 % of the bandwidth (Nsight Compute), replayed at
    its peak; beside a timeline without such a replay a note.
    """
    rate, fusable = evidence.thresholds.severity, evidence.figures.fusable_share
    taken, dram = elementwise_share(evidence), _dram_activity(evidence)

    def suffers(kernel: KernelMetrics) -> float:
        used, sm = share(kernel.dram_percent), share(kernel.sm_percent)
        waits = min(rate("dram_activity", used), rate("sm_throughput", sm))
        return max(waits, rate("bandwidth_kernel", used) if kernel.group in MOVING else 0.0)

    worst, by_dram = worst_kernel(evidence, suffers), rate("dram_activity", dram)
    severity = by_dram if evidence.replay is None else min(by_dram, NOTICEABLE)
    gain, bound, text = None, None, f"DRAM is active {percent(dram)} of the time"
    if worst is not None and worst.severity >= by_dram:
        severity, gain = worst.severity, worst.replayed
        text = f"{_moves(share(worst.kernel.dram_percent), evidence)}: {worst.name}"
    fused, at_most = evidence.replayed_gain(Change.FUSION), gain_without(fusable)
    if gain_severity(fused or at_most or 1.0) >= severity:
        severity, gain, bound = gain_severity(at_most or 1.0), fused, at_most
        gone = fusable if fused is None else share_without(fused)
        takes = None if taken is None else max(taken, gone or 0.0)
        text = f"elementwise kernels, norms and reductions take {percent(takes)} of the step; "
        text += f"{percent(gone)} of it would go if their chains were fused"
    return Seen(
        text,
        measured(Source.TIMELINE, elementwise_share=taken, fusable_share=fusable)
        + measured(Source.ACTIVITY, dram_activity=dram)
        + (worst.figures if worst else []),
        ADVICE_MEMORY,
        severity=severity,
        knob="compile",
        replayed=gain,
        bound=bound,
    )


def _moves(used: float | None, evidence: Evidence) -> str:
    if evidence.thresholds.severity("dram_activity", used) >= WARNING:
        return f"a kernel waits for memory, DRAM throughput is {percent(used)}"
    return f"a kernel that moves data uses {percent(used)} of the memory's bandwidth"


def elementwise_share(evidence: Evidence) -> float | None:
    """The share of the step in elementwise kernels, norms and reductions; None if not known."""
    shares, kernel_share = evidence.figures.group_shares, evidence.figures.kernel_share
    if shares is None or kernel_share is None:
        return None
    computing = 1 - shares.get(Group.COMMUNICATION.value, 0.0)
    fusable = sum(shares.get(group.value, 0.0) for group in FUSABLE)
    return fusable / computing * kernel_share if computing > 0 else 0.0


def _dram_activity(evidence: Evidence) -> float | None:
    """DRAM activity of the device; None where it is not known or feeds tensor cores."""
    moving = (d for d in evidence.devices if (d.tensor_activity_percent or 0.0) < 100 * COMPUTING)
    return next((share(d.dram_activity_percent) for d in moving if d.dram_activity_percent), None)
