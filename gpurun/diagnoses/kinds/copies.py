"""Copies cost time: to the device, to the host, within the device's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.diagnoses.api import Diagnosis, gain_without, location_of, measured, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.records.finding import Finding, FindingType
from gpurun.records.profile_figures import CopyShare
from gpurun.replay.what_ifs import Change
from gpurun.timeline.model import CopyKind

ADVICE_PAGEABLE = (
    "pin the batches: DataLoader(pin_memory=True)",
    "copy without blocking: batch.to(device, non_blocking=True)",
)
ADVICE_PINNED = (
    "copy the next batch on a side stream while this one is computed",
    "send fewer bytes: integers in place of floats, normalised on the device",
)
ADVICE_TO_HOST = (
    "keep results on the device, and copy once in many steps what the host needs",
    "copy into pinned memory on a side stream: tensor.to('cpu', non_blocking=True)",
)
ADVICE_ON_DEVICE = (
    "leave out .clone() and .contiguous() where nothing writes to the copy; write into slices of "
    "one tensor in place of torch.cat",
    "keep one memory format and one type: each change is a copy",
)


class HostToDeviceCopies(Diagnosis):
    """Copies from the host to the device cost time.

    Replayed with batches that come from pinned memory, a step ahead, while kernels run. Copies from
    memory that is not pinned also block the host. Without a replay, the bound is the step less the
    copies that no kernel hides.
    """

    type: ClassVar[FindingType] = FindingType.H2D_COPY
    change: ClassVar[Change | None] = Change.COPIES
    sources: ClassVar[tuple[Source, ...]] = (Source.TIMELINE,)

    def find(self, evidence: Evidence) -> Finding | None:
        """The copies, and the memory that they come from."""
        copies = _of_kind(evidence, CopyKind.H2D)
        pageable = any(copy.pageable and copy.exposed_share for copy in copies)
        memory = "memory that is not pinned" if pageable else "pinned memory"
        return _finding(
            self,
            evidence,
            copies,
            f"to the device take {{}} of the step, from {memory}",
            (*ADVICE_PAGEABLE, ADVICE_PINNED[0]) if pageable else ADVICE_PINNED,
            location=location_of(evidence.loaders[0].key) if evidence.loaders else None,
            knob="async_copies" if pageable else "device_prefetch",
        )


class DeviceToHostCopies(Diagnosis):
    """Copies from the device to the host cost time.

    Replayed without them; the host's waits for values are those of `cpu_gpu_sync`. Without a
    replay, the bound is the step less the copies that no kernel hides.
    """

    type: ClassVar[FindingType] = FindingType.D2H_COPY
    change: ClassVar[Change | None] = Change.READBACKS
    sources: ClassVar[tuple[Source, ...]] = (Source.TIMELINE,)

    def find(self, evidence: Evidence) -> Finding | None:
        """The copies of a step."""
        copies = _of_kind(evidence, CopyKind.D2H)
        return _finding(self, evidence, copies, "to the host take {} of the step", ADVICE_TO_HOST)


class CopiesOnDevice(Diagnosis):
    """Copies within the device's memory cost time.

    Replayed without them. Without a replay, the bound is the step less the copies that no kernel
    hides.
    """

    type: ClassVar[FindingType] = FindingType.D2D_COPY
    change: ClassVar[Change | None] = Change.MOVES
    sources: ClassVar[tuple[Source, ...]] = (Source.TIMELINE,)

    def find(self, evidence: Evidence) -> Finding | None:
        """The copies of a step."""
        copies, take = _of_kind(evidence, CopyKind.D2D), "on the device take {} of the step"
        return _finding(self, evidence, copies, take, ADVICE_ON_DEVICE)


def _of_kind(evidence: Evidence, kind: CopyKind) -> list[CopyShare]:
    return [each for each in evidence.figures.copies or () if each.kind == kind.value]


def _finding(
    diagnosis: Diagnosis,
    evidence: Evidence,
    copies: Sequence[CopyShare],
    take: str,
    advice: tuple[str, ...],
    **more: Any,
) -> Finding | None:
    if not copies:
        return None
    kind, share, exposed = copies[0].kind, _sum(copies, "share"), _sum(copies, "exposed_share")
    pageable = _sum([each for each in copies if each.pageable], "share")
    figures: dict[str, Any] = {
        f"{kind}_share": share,
        f"exposed_{kind}_share": exposed,
        f"pageable_{kind}_share": pageable,
        f"{kind}_bytes_per_step": _sum(copies, "bytes_per_step"),
        "copies_per_step": _sum(copies, "calls_per_step"),
    }
    return diagnosis.finding(
        evidence,
        f"copies {take.format(percent(share))}; no kernel hides {percent(exposed)}",
        measured(Source.TIMELINE, **figures),
        advice,
        bound=gain_without(exposed),
        **more,
    )


def _sum(copies: Sequence[CopyShare], figure: str) -> float | None:
    """None where one of them was not measured."""
    known = [getattr(each, figure) for each in copies]
    return None if None in known else float(sum(known))
