"""Kernels run, but leave much of the device unused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gpurun.diagnoses.api import NOTICEABLE, Seen, diagnosis, measured, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.thresholds import gain_severity
from gpurun.formatting.kernel_names import short_kernel_name
from gpurun.records.effects import ALLOW_ALL
from gpurun.records.finding import WARNING, EvidenceFigure, FindingType
from gpurun.timeline.kernel_time import SHORT_NS
from gpurun.timeline.model import KernelMetrics

ADVICE_SLOW = (
    "look at the kernel with Nsight Compute: gpurun profile --sources kineto,ncu",
    "torch.compile fuses small kernels into larger ones",
    "sizes that are multiples of 8 (64 for half precision) fit the device's tiles",
)
ADVICE_LIMITS = {
    "registers": "fewer registers a thread: __launch_bounds__ or -maxrregcount; in Triton fewer or "
    "smaller blocks a program (num_warps, BLOCK sizes)",
    "shared_memory": "less shared memory a block: smaller tiles, fewer stages (num_stages)",
    "grid": "the grid has fewer blocks than the device has multiprocessors: a larger batch, or "
    "split the reduction (split-K)",
    "block_size": "other block sizes: 128 to 256 threads a block fit most kernels",
    "blocks": "larger blocks: a multiprocessor holds only so many, whatever their size",
    "barriers": "fewer barriers a block",
}
ADVICE_UNEVEN = "blocks that end together: share the work out evenly, or in more and smaller blocks"
ADVICE_RECORD: tuple[str, ...] = (
    "record its limits: ncu --section Occupancy --section LaunchStats",
)
ADVICE_BLOCKS = (
    "blocks of a multiple of 32 threads: the last warp of a block is padded with idle ones"
)
ADVICE_WARPS = (
    "where threads take different branches: sort or group the work so that neighbours take the "
    "same one",
    "pad ragged inputs, or bucket them by length",
)
ADVICE_BATCH = (
    "raise the batch size; gpurun --optimize finds the fastest that fits, and names the learning "
    f"rate that goes with it (it changes the training: {ALLOW_ALL})",
    "where the batch must stay: torch.compile(mode='reduce-overhead') makes launches cheap",
)
LIMITS = {"registers", "shared_memory", "block_size"}
"""The least of these is named only where all of them were recorded."""
WORTH = 0.30
"""Share of the time; kernels that run for less of it do not hold up the step."""
HELD_UP = 0.05
"""With such a share of the step spent waiting for data the device is unused for another reason."""
WEIGHT = 0.10
"""Share of the measured kernels' time; a kernel that takes less is not worth a finding."""
WARP = 32
"""Threads of a warp on all GPUs of NVIDIA."""


@diagnosis(
    FindingType.KERNEL_EFFICIENCY, Source.ACTIVITY, Source.TIMELINE, Source.KERNELS,
    thresholds=("sm_activity", "sm_throughput"),
)  # fmt: skip
def kernel_efficiency(evidence: Evidence) -> Seen | None:
    """Kernels leave much of the device unused while they run.

    Triggered by SM activity below 60 % (critical: 40 %) of the time in which the device is busy, or
    by a kernel with SM throughput below 60 % (critical: 40 %), replayed with the kernel at the peak
    of SMs or memory; beside a timeline without such a replay a note.
    """
    busy = _busy_share(evidence)
    if busy is not None and busy < WORTH:
        return None
    activity, rate = _activity_while_busy(evidence), evidence.thresholds.severity
    severity, replayed = rate("sm_activity", activity), None
    text = f"SMs are active {percent(activity)} of the time in which kernels run"
    slow = worst_kernel(evidence, lambda k: rate("sm_throughput", share(k.sm_percent)))
    if slow is not None and slow.severity >= severity:
        severity, replayed = slow.severity, slow.replayed
        text = f"SM throughput is {percent(share(slow.kernel.sm_percent))}: {slow.name}"
    sms = evidence.sm_activity
    return Seen(
        text,
        (slow.figures if slow else [])
        + measured(Source.ACTIVITY, sm_activity_while_busy=activity, sm_activity=sms),
        ADVICE_SLOW[1:] if slow else ADVICE_SLOW,
        severity=severity,
        knob="compile",
        replayed=replayed,
    )


@diagnosis(FindingType.OCCUPANCY, Source.KERNELS, thresholds=("occupancy", "sm_throughput"))
def occupancy(evidence: Evidence) -> Seen | None:
    """A kernel holds few warps on each multiprocessor.

    Triggered, by kernel, by occupancy below 30 %. With SM throughput of 60 % it is a note: kernels
    on tensor cores are fast at low occupancy. Replayed with the kernel at the peak of SMs or
    memory, whichever it is nearer to; beside a timeline without such a replay a note. Registers,
    shared memory, blocks or the grid are named as the cause where they were recorded and explain
    it. Where a timeline shows launches, kernels below 10 µs are left to the launch-bound finding.
    """
    rate = evidence.thresholds.severity

    def suffers(kernel: KernelMetrics) -> float:
        low, sm = rate("occupancy", share(kernel.occupancy_percent)), kernel.sm_percent or 0.0
        return max(min(low, rate("sm_throughput", sm / 100)), NOTICEABLE if low >= WARNING else 0.0)

    if (worst := worst_kernel(evidence, suffers)) is None:
        return None
    kernel, fits = worst.kernel, share(worst.kernel.theoretical_occupancy_percent)
    causes, allowed = _limits_of(kernel, evidence), rate("occupancy", fits) < WARNING
    why, advice = "its limit was not recorded", ADVICE_RECORD
    if causes and (causes == ("grid",) or fits is None or not allowed):
        why = f"limited by {' and '.join(causes).replace('_', ' ')}"
        advice = tuple(ADVICE_LIMITS[cause] for cause in causes)
    elif fits is not None and allowed:
        why, advice, causes = f"though its limits allow {percent(fits)}", (ADVICE_UNEVEN,), ()
    return Seen(
        f"occupancy is {percent(share(kernel.occupancy_percent))}, {why}: {worst.name}",
        worst.figures
        + measured(
            Source.KERNELS,
            occupancy_percent=kernel.occupancy_percent,
            theoretical_occupancy_percent=kernel.theoretical_occupancy_percent,
            registers_per_thread=kernel.registers,
            shared_memory_bytes=kernel.shared_memory_bytes,
            limit=", ".join(causes) or None,
        ),
        advice,
        severity=worst.severity,
        replayed=worst.replayed,
    )


@diagnosis(FindingType.WARP_EFFICIENCY, Source.KERNELS, thresholds=("warp_efficiency",))
def warp_efficiency(evidence: Evidence) -> Seen | None:
    """Threads of a warp are idle: branches run in turn, or the block does not fill the warp.

    Triggered, by kernel, by less than 80 % of a warp's threads active per instruction. Replayed
    with the kernel's whole warps active: it is as much faster; beside a timeline without such a
    replay a note.
    """

    def active(kernel: KernelMetrics) -> float | None:
        return share(kernel.branch_efficiency_percent)

    rate = evidence.thresholds.severity
    worst = worst_kernel(evidence, lambda k: rate("warp_efficiency", active(k)), active)
    if worst is None:
        return None
    threads, efficiency = math.prod(worst.kernel.block or (WARP,)), active(worst.kernel)
    partial = threads if threads % WARP else None
    told = f", in blocks of {partial} threads" if partial else ""
    return Seen(
        f"warp efficiency is {percent(efficiency)}{told}: {worst.name}",
        worst.figures + measured(Source.KERNELS, warp_efficiency=efficiency, block_threads=partial),
        (ADVICE_BLOCKS, *ADVICE_WARPS) if partial else ADVICE_WARPS,
        severity=worst.severity,
        replayed=worst.replayed,
    )


@diagnosis(
    FindingType.SMALL_BATCH, Source.DEVICE, Source.ACTIVITY, Source.TIMELINE,
    thresholds=("little_memory", "sm_activity", "small_grid_share"),
)  # fmt: skip
def small_batch(evidence: Evidence) -> Seen | None:
    """The batch gives the device too little to do at a time.

    Triggered if less than half of the device's memory is in use and kernels are small. Kernels
    count as small if SM activity is below 60 % while busy. Without that figure, kernels are small
    if those with fewer blocks than SMs take over 30 % of kernel time. Not reported while the
    training waits for data.
    """
    if (evidence.data_wait_share or 0.0) > HELD_UP:
        return None
    rate, launches = evidence.thresholds.severity, evidence.figures.launches
    grids = None if launches is None else launches.small_grid_share
    activity, memory = _activity_while_busy(evidence), evidence.memory_used_share
    by_grids = activity is None
    small = rate("small_grid_share", grids) if by_grids else rate("sm_activity", activity)
    batch = None if evidence.result is None else evidence.result.batch_size
    size = "the batch" if batch is None else f"a batch of {batch:g}"
    return Seen(
        f"{size} is too small for the device: {percent(memory)} of its memory is in use",
        measured(Source.STEPS, batch_size=batch)
        + measured(Source.DEVICE, memory_used_share=memory)
        + measured(Source.ACTIVITY, sm_activity_while_busy=activity)
        + measured(Source.TIMELINE, small_grid_share=grids),
        ADVICE_BATCH,
        severity=min(rate("little_memory", memory), small),
        knob="batch_size",
    )


@dataclass(frozen=True)
class WorstKernel:
    """A kernel whose counters are bad. `replayed`: the gain if it used the device whole."""

    kernel: KernelMetrics
    severity: float
    replayed: float | None

    @property
    def name(self) -> str:
        """Its short name."""
        return short_kernel_name(self.kernel.name)

    @property
    def figures(self) -> list[EvidenceFigure]:
        """Its name and its use of the device."""
        sm, dram = self.kernel.sm_percent, self.kernel.dram_percent
        return measured(Source.KERNELS, kernel=self.kernel.name, sm_percent=sm, dram_percent=dram)


def worst_kernel(
    evidence: Evidence,
    rate: Callable[[KernelMetrics], float],
    used: Callable[[KernelMetrics], float | None] | None = None,
) -> WorstKernel | None:
    """The kernel of the highest severity; None where none is worth a word.

    `used`: the part of the device that a kernel uses; by default of the SMs or of the memory,
    whichever it is nearer to. Beside a timeline counters are above a note only if their gain is,
    and short kernels are a matter of launches.
    """
    alone, kernels = evidence.idle is None, evidence.kernel_metrics
    total = sum(kernel.duration_ns or 0.0 for kernel in kernels)
    least = max(0.0 if alone else SHORT_NS, WEIGHT * total)
    long = (k for k in kernels if k.duration_ns is None or k.duration_ns >= least)
    rated = [(rate(kernel), kernel) for kernel in long]
    severity, kernel = max(rated, key=lambda pair: pair[0], default=(0.0, None))
    if kernel is None or severity <= 0:
        return None
    if alone:
        return WorstKernel(kernel, severity, None)
    nearest = max(kernel.sm_percent or 0.0, kernel.dram_percent or 0.0) / 100
    part, gain = nearest if used is None else used(kernel), None
    if evidence.replay is not None and part and severity >= WARNING:
        gain = evidence.replay.gain_of_kernel(kernel.name, min(part, 1.0))
    severity = min(severity, NOTICEABLE) if gain is None else gain_severity(gain)
    return WorstKernel(kernel, severity, gain)


def share(percents: float | None) -> float | None:
    """Percent as a fraction."""
    return None if percents is None else percents / 100


def _activity_while_busy(evidence: Evidence) -> float | None:
    """SM activity over the time in which kernels run; None where either is not known."""
    activity, busy = evidence.sm_activity, evidence.figures.kernel_share
    busy = _busy_share(evidence) if busy is None else busy
    return None if activity is None or not busy else min(activity / busy, 1.0)


def _busy_share(evidence: Evidence) -> float | None:
    """Share of the time in which the device has work: by the timeline, else by its counters."""
    if evidence.idle is not None:
        return 1 - evidence.idle.total
    return evidence.activity("graphics_activity_percent")


def _limits_of(kernel: KernelMetrics, evidence: Evidence) -> tuple[str, ...]:
    """The limits of the occupancy, keys of the advice; none where not all were recorded."""
    devices = () if evidence.timeline is None else evidence.timeline.devices or ()
    known = [d.multiprocessors for d in devices if d.multiprocessors]
    count, limits = kernel.multiprocessors or min(known, default=0), kernel.occupancy_limits
    if kernel.grid is not None and math.prod(kernel.grid) < count:
        return ("grid",)
    bound = (name for name, blocks in limits.items() if blocks == min(limits.values()))
    return tuple(bound) if limits.keys() >= LIMITS else ()
