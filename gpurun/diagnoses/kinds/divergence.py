"""Kernels whose threads take different ways."""

from __future__ import annotations

from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.formatting.kernel_names import short_kernel_name
from gpurun.records.finding import Finding, FindingType

ADVICE = (
    "sort or group the work so that neighbouring threads take the same branch",
    "pad ragged inputs, or bucket them by length",
)


class Divergence(Diagnosis):
    """Threads of a warp diverge, and the warp takes each way in turn.

    Triggered, by kernel, by less than 80 % of a warp's threads active per instruction.
    """

    type: ClassVar[FindingType] = FindingType.DIVERGENCE
    sources: ClassVar[tuple[Source, ...]] = (Source.KERNELS,)
    thresholds: ClassVar[tuple[str, ...]] = ("warp_efficiency",)

    def find(self, evidence: Evidence) -> Finding | None:
        """The kernel whose warps are emptiest; no honest bound of the whole step can be given."""
        known = [
            (k.branch_efficiency_percent / 100, k)
            for k in evidence.weighty_kernels
            if k.branch_efficiency_percent is not None
        ]
        if not known:
            return None
        efficiency, kernel = min(known, key=lambda pair: pair[0])
        return self.finding(
            evidence,
            evidence.thresholds.severity("warp_efficiency", efficiency),
            f"{percent(efficiency)} of a warp's threads are active: "
            f"{short_kernel_name(kernel.name)}",
            [
                figure("kernel", kernel.name, Source.KERNELS),
                figure("warp_efficiency", efficiency, Source.KERNELS),
                figure("sm_percent", kernel.sm_percent, Source.KERNELS),
            ],
            ADVICE,
        )
