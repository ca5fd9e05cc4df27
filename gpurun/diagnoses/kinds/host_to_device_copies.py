"""Copies of batches to the device hold up the step."""

from __future__ import annotations

from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, gain_without, location_of, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.records.finding import WARNING, Finding, FindingType

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

    Triggered by copies that no kernel hides, at once by such copies from memory that is not pinned,
    which also block the host. Copies above 10 % of the step that kernels hide are a note.
    """

    type: ClassVar[FindingType] = FindingType.H2D_COPY
    sources: ClassVar[tuple[Source, ...]] = (Source.TIMELINE,)
    thresholds: ClassVar[tuple[str, ...]] = (
        "h2d_share",
        "exposed_h2d_share",
        "pageable_h2d_share",
    )

    def find(self, evidence: Evidence) -> Finding | None:
        """The copies; the bound is the time in which no kernel hides them."""
        copies = None if evidence.figures is None else evidence.figures.copies
        if copies is None:
            return None
        rate = evidence.thresholds.severity
        exposed = rate("exposed_h2d_share", copies.exposed_share)
        by_size = rate("h2d_share", copies.h2d_share)
        severity = max(
            by_size if exposed >= WARNING else min(by_size, WARNING / 2),
            exposed,
            rate("pageable_h2d_share", copies.pageable_exposed_share),
        )
        pageable = bool(copies.pageable_exposed_share)
        memory = "memory that is not pinned" if pageable else "pinned memory"
        return self.finding(
            evidence,
            severity,
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
            gain=gain_without(copies.exposed_share),
        )
