"""Copies of batches to the device hold up the step."""

from __future__ import annotations

from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, gain_without, location_of, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.records.finding import Finding, FindingType
from gpurun.replay.what_ifs import Change

ADVICE_PAGEABLE = (
    "pin the batches: DataLoader(pin_memory=True)",
    "copy without blocking: batch.to(device, non_blocking=True)",
)
ADVICE_PINNED = (
    "copy the next batch on a side stream while this one is computed",
    "send fewer bytes: integers in place of floats, normalised on the device",
)


class HostToDeviceCopies(Diagnosis):
    """Copies from the host to the device cost time.

    Replayed with batches that come from pinned memory, a step ahead, while kernels run. Copies from
    memory that is not pinned also block the host. Without a replay, the bound is the step less the
    copies that no kernel hides.
    """

    type: ClassVar[FindingType] = FindingType.H2D_COPY
    sources: ClassVar[tuple[Source, ...]] = (Source.TIMELINE,)

    def find(self, evidence: Evidence) -> Finding | None:
        """The copies, and the memory that they come from."""
        copies = evidence.figures.copies
        if copies is None:
            return None
        pageable = bool(copies.pageable_exposed_share)
        memory = "memory that is not pinned" if pageable else "pinned memory"
        return self.finding(
            evidence,
            None,
            f"copies to the device take {percent(copies.h2d_share)} of the step, from {memory}; "
            f"no kernel hides {percent(copies.exposed_share)}",
            [
                figure("h2d_share", copies.h2d_share, Source.TIMELINE),
                figure("exposed_h2d_share", copies.exposed_share, Source.TIMELINE),
                figure("pageable_h2d_share", copies.pageable_share, Source.TIMELINE),
                figure("h2d_bytes_per_step", copies.h2d_bytes_per_step, Source.TIMELINE),
                figure("copies_per_step", copies.copies_per_step, Source.TIMELINE),
            ],
            (*ADVICE_PAGEABLE, ADVICE_PINNED[0]) if pageable else ADVICE_PINNED,
            location=location_of(evidence.loaders[0].key) if evidence.loaders else None,
            knob="async_copies" if pageable else "device_prefetch",
            replayed=evidence.replayed_gain(Change.COPIES),
            bound=gain_without(copies.exposed_share),
        )
