"""A batch too small for the device."""

from __future__ import annotations

from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.kinds.kernel_efficiency import activity_while_busy
from gpurun.records.effects import ALLOW_ALL
from gpurun.records.finding import Finding, FindingType

ADVICE = (
    "raise the batch size; gpurun --optimize finds the fastest that fits, and names the learning "
    f"rate that goes with it (it changes the training: {ALLOW_ALL})",
    "where the batch must stay: torch.compile(mode='reduce-overhead') makes launches cheap",
)
HELD_UP = 0.05
"""With such a share of the step spent waiting for data the device is unused for another reason."""


class SmallBatch(Diagnosis):
    """The batch gives the device too little to do at a time.

    Triggered if less than half of the device's memory is in use and kernels are small. Kernels
    count as small if SM activity is below 60 % while busy. Without that figure, kernels are small
    if those with fewer blocks than SMs take over 30 % of kernel time. Not reported while the
    training waits for data.
    """

    type: ClassVar[FindingType] = FindingType.SMALL_BATCH
    sources: ClassVar[tuple[Source, ...]] = (Source.DEVICE, Source.ACTIVITY, Source.TIMELINE)
    thresholds: ClassVar[tuple[str, ...]] = ("little_memory", "sm_activity", "small_grid_share")

    def find(self, evidence: Evidence) -> Finding | None:
        """Memory and activity together; how much a larger batch gains, only a trial can tell."""
        rate = evidence.thresholds.severity
        if (evidence.data_wait_share or 0.0) > HELD_UP:
            return None
        launches = evidence.figures.launches
        grids = None if launches is None else launches.small_grid_share
        activity, memory = activity_while_busy(evidence), evidence.memory_used_share
        severity = min(
            rate("little_memory", memory),
            rate("small_grid_share", grids) if activity is None else rate("sm_activity", activity),
        )
        batch = None if evidence.result is None else evidence.result.batch_size
        size = "the batch" if batch is None else f"a batch of {batch:g}"
        return self.finding(
            evidence,
            severity,
            f"{size} is too small for the device: {percent(memory)} of its memory is in use",
            [
                figure("batch_size", batch, Source.STEPS),
                figure("memory_used_share", memory, Source.DEVICE),
                figure("sm_activity_while_busy", activity, Source.ACTIVITY),
                figure("small_grid_share", grids, Source.TIMELINE),
            ],
            ADVICE,
            knob="batch_size",
        )
