"""Kernels that leave threads of their warps idle."""

from __future__ import annotations

import math
from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, kernel_figures, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.formatting.kernel_names import short_kernel_name
from gpurun.records.finding import WARNING, Finding, FindingType
from gpurun.timeline.model import Dimensions

WARP = 32
"""Threads of a warp on all GPUs of NVIDIA."""
ADVICE = (
    "where threads take different branches: sort or group the work so that neighbours take the "
    "same one",
    "pad ragged inputs, or bucket them by length",
)
PARTIAL = "blocks of a multiple of 32 threads: the last warp of a block is padded with idle ones"


class WarpEfficiency(Diagnosis):
    """Threads of a warp are idle: branches run in turn, or the block does not fill the warp.

    Triggered, by kernel, by less than 80 % of a warp's threads active per instruction. Replayed
    with the kernel's whole warps active: it is as much faster.
    """

    type: ClassVar[FindingType] = FindingType.WARP_EFFICIENCY
    sources: ClassVar[tuple[Source, ...]] = (Source.KERNELS,)
    thresholds: ClassVar[tuple[str, ...]] = ("warp_efficiency",)

    def find(self, evidence: Evidence) -> Finding | None:
        """The kernel whose warps are emptiest; without a replay there is no honest bound."""
        known = [
            (k.branch_efficiency_percent / 100, k)
            for k in evidence.weighty_kernels
            if k.branch_efficiency_percent is not None
        ]
        if not known:
            return None
        efficiency, kernel = min(known, key=lambda pair: pair[0])
        threads, replayed = _partial_block(kernel.block), None
        severity = evidence.thresholds.severity("warp_efficiency", efficiency)
        if severity >= WARNING and evidence.replay is not None:
            replayed = evidence.replay.gain_of_kernel(kernel.name, efficiency)
        told = "" if threads is None else f", in blocks of {threads} threads"
        return self.finding(
            evidence,
            severity,
            f"warp efficiency is {percent(efficiency)}{told}: {short_kernel_name(kernel.name)}",
            [
                *kernel_figures(kernel),
                figure("warp_efficiency", efficiency, Source.KERNELS),
                figure("block_threads", threads, Source.KERNELS),
            ],
            ADVICE if threads is None else (PARTIAL, *ADVICE),
            replayed=replayed,
        )


def _partial_block(block: Dimensions | None) -> int | None:
    """The threads of a block that do not fill its warps; None where they do, or are not known."""
    threads = None if block is None else math.prod(block)
    return threads if threads and threads % WARP else None
