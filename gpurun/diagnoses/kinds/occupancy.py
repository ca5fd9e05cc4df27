"""Kernels that hold too few warps to hide their waits."""

from __future__ import annotations

import math
from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, kernel_figures, percent, roofline_gain
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.formatting.kernel_names import short_kernel_name
from gpurun.records.finding import WARNING, Finding, FindingType
from gpurun.timeline.model import KernelMetrics

ADVICE = {
    "registers": (
        "fewer registers a thread: __launch_bounds__ or -maxrregcount; in Triton fewer or smaller "
        "blocks a program (num_warps, BLOCK sizes)",
    ),
    "shared_memory": ("less shared memory a block: smaller tiles, fewer stages (num_stages)",),
    "grid": (
        "the grid has fewer blocks than the device has multiprocessors: a larger batch, or split "
        "the reduction (split-K)",
    ),
    "block_size": ("other block sizes: 128 to 256 threads a block fit most kernels",),
    "blocks": ("larger blocks: a multiprocessor holds only so many, whatever their size",),
    "barriers": ("fewer barriers a block",),
}
UNEVEN = ("blocks that end together: share the work out evenly, or in more and smaller blocks",)
UNRECORDED = ("record its limits: ncu --section Occupancy --section LaunchStats",)
LIMITS = {"registers", "shared_memory", "block_size"}
"""The least of these is named only where all of them were recorded."""


class Occupancy(Diagnosis):
    """A kernel holds few warps on each multiprocessor and leaves arithmetic units unused.

    Triggered, by kernel, by occupancy below 30 % together with SM throughput below 60 %: kernels on
    tensor cores are fast at low occupancy. Replayed with the kernel at the peak of SMs or
    memory, whichever it is nearer to. Registers, shared memory, blocks or the grid are named
    as the cause where they were recorded and explain it. Where a timeline shows launches, kernels
    below 10 µs are left to the launch-bound finding.
    """

    type: ClassVar[FindingType] = FindingType.OCCUPANCY
    sources: ClassVar[tuple[Source, ...]] = (Source.KERNELS,)
    thresholds: ClassVar[tuple[str, ...]] = ("occupancy", "sm_throughput")

    def find(self, evidence: Evidence) -> Finding | None:
        """The kernel that suffers most; without a replay there is no honest bound."""
        rated = [(_severity(evidence, k), k) for k in evidence.weighty_kernels]
        if not rated:
            return None
        severity, kernel = max(rated, key=lambda pair: pair[0])
        occupancy, fits = kernel.occupancy_percent, kernel.theoretical_occupancy_percent
        causes = limits_of(kernel, _multiprocessors(evidence))
        allowed = (
            fits is not None and evidence.thresholds.severity("occupancy", fits / 100) < WARNING
        )
        if causes == ("grid",) or (causes and not allowed):
            why = f"limited by {' and '.join(causes).replace('_', ' ')}"
            advice = tuple(tip for cause in causes for tip in ADVICE[cause])
        elif allowed:
            why, advice, causes = f"though its limits allow {percent(_share(fits))}", UNEVEN, ()
        else:
            why, advice = "its limit was not recorded", UNRECORDED
        return self.finding(
            evidence,
            severity,
            f"occupancy is {percent(_share(occupancy))}, {why}: {short_kernel_name(kernel.name)}",
            [
                *kernel_figures(kernel),
                figure("occupancy_percent", occupancy, Source.KERNELS),
                figure("theoretical_occupancy_percent", fits, Source.KERNELS),
                figure("registers_per_thread", kernel.registers, Source.KERNELS),
                figure("shared_memory_bytes", kernel.shared_memory_bytes, Source.KERNELS),
                figure("limit", ", ".join(causes) or None, Source.KERNELS),
            ],
            advice,
            replayed=roofline_gain(evidence, kernel) if severity >= WARNING else None,
        )


def limits_of(kernel: KernelMetrics, multiprocessors: int | None) -> tuple[str, ...]:
    """The limits of the occupancy, keys of `ADVICE`; none where not all were recorded."""
    count = (kernel.others or {}).get("launch__sm_count", multiprocessors)
    if kernel.grid is not None and count and math.prod(kernel.grid) < count:
        return ("grid",)
    limits = kernel.occupancy_limits
    if not limits.keys() >= LIMITS:
        return ()
    return tuple(name for name, blocks in limits.items() if blocks == min(limits.values()))


def _severity(evidence: Evidence, kernel: KernelMetrics) -> float:
    rate = evidence.thresholds.severity
    by_occupancy = rate("occupancy", _share(kernel.occupancy_percent))
    if kernel.sm_percent is None:
        return by_occupancy
    return min(by_occupancy, rate("sm_throughput", _share(kernel.sm_percent)))


def _share(percents: float | None) -> float | None:
    return None if percents is None else percents / 100


def _multiprocessors(evidence: Evidence) -> int | None:
    devices = () if evidence.timeline is None else evidence.timeline.devices or ()
    return min((d.multiprocessors for d in devices if d.multiprocessors), default=None)
