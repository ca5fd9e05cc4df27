"""Kernels that hold too few warps to hide their waits."""

from __future__ import annotations

import math
from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.formatting.kernel_names import short_kernel_name
from gpurun.records.finding import Finding, FindingType
from gpurun.timeline.model import KernelMetrics
from gpurun.timeline.weighty_kernels import weighty

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
    "block": ("other block sizes: 128 to 256 threads a block fit most kernels",),
}


class Occupancy(Diagnosis):
    """A kernel holds few warps on each multiprocessor and leaves arithmetic units unused.

    Triggered, by kernel, by occupancy below 30 % together with SM throughput below 60 %: kernels on
    tensor cores are fast at low occupancy. Registers, shared memory or the grid are named as the
    cause. Kernels below 10 µs are left to the launch-bound finding.
    """

    type: ClassVar[FindingType] = FindingType.OCCUPANCY
    sources: ClassVar[tuple[Source, ...]] = (Source.KERNELS,)
    thresholds: ClassVar[tuple[str, ...]] = ("occupancy", "sm_throughput")

    def find(self, evidence: Evidence) -> Finding | None:
        """The kernel that suffers most; no honest bound of the whole step can be given."""
        rated = [(_severity(evidence, k), k) for k in weighty(evidence.kernel_metrics)]
        if not rated:
            return None
        severity, kernel = max(rated, key=lambda pair: pair[0])
        cause = limit_of(kernel, _multiprocessors(evidence))
        occupancy = kernel.occupancy_percent
        return self.finding(
            evidence,
            severity,
            f"occupancy is {percent((occupancy or 0.0) / 100)}, limited by "
            f"{cause.replace('_', ' ')}: {short_kernel_name(kernel.name)}",
            [
                figure("kernel", kernel.name, Source.KERNELS),
                figure("occupancy_percent", occupancy, Source.KERNELS),
                figure(
                    "theoretical_occupancy_percent",
                    kernel.theoretical_occupancy_percent,
                    Source.KERNELS,
                ),
                figure("sm_percent", kernel.sm_percent, Source.KERNELS),
                figure("registers_per_thread", kernel.registers, Source.KERNELS),
                figure("shared_memory_bytes", kernel.shared_memory_bytes, Source.KERNELS),
                figure("limit", cause, Source.KERNELS),
            ],
            ADVICE[cause],
        )


def limit_of(kernel: KernelMetrics, multiprocessors: int | None) -> str:
    """The limit of the occupancy: "grid", "registers", "shared_memory" or "block"."""
    if kernel.grid is not None and math.prod(kernel.grid) < (multiprocessors or 1):
        return "grid"
    limits = {name: value for name, value in kernel.occupancy_limits.items() if name in ADVICE}
    return min(limits, key=lambda name: limits[name], default="block")


def _severity(evidence: Evidence, kernel: KernelMetrics) -> float:
    if kernel.occupancy_percent is None or kernel.sm_percent is None:
        return 0.0
    return min(
        evidence.thresholds.severity("occupancy", kernel.occupancy_percent / 100),
        evidence.thresholds.severity("sm_throughput", kernel.sm_percent / 100),
    )


def _multiprocessors(evidence: Evidence) -> int | None:
    devices = () if evidence.timeline is None else evidence.timeline.devices or ()
    return min((d.multiprocessors for d in devices if d.multiprocessors), default=None)
