"""Copies cost time: to the device, to the host, within the device's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpurun.diagnoses.api import Seen, diagnosis, gain_without, location_of, measured, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.records.finding import FindingType
from gpurun.records.messages.traits import COPIES_GRADIENTS
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
ADVICE_BUCKETS = (
    "DistributedDataParallel(gradient_as_bucket_view=True): gradients stay in their buckets; the "
    "same training, with a copy of all gradients less in memory",
)


@diagnosis(FindingType.H2D_COPY, Source.TIMELINE, change=Change.COPIES)
def host_to_device_copies(evidence: Evidence) -> Seen | None:
    """Copies from the host to the device cost time.

    Replayed with batches that come from pinned memory, a step ahead, while kernels run. Copies from
    memory that is not pinned also block the host. Without a replay, the bound is the step less the
    copies that no kernel hides.
    """
    copies = [c for c in evidence.figures.copies or () if c.kind == CopyKind.H2D.value]
    pageable = any(copy.pageable and copy.exposed_share for copy in copies)
    memory = "memory that is not pinned" if pageable else "pinned memory"
    advice = (*ADVICE_PAGEABLE, ADVICE_PINNED[0]) if pageable else ADVICE_PINNED
    take = f"to the device take {{share}} of the step, from {memory}"
    seen = _seen(evidence, CopyKind.H2D, take, advice)
    return seen and replace(
        seen,
        location=location_of(evidence.loaders[0].key) if evidence.loaders else None,
        knob="async_copies" if pageable else "device_prefetch",
    )


@diagnosis(FindingType.D2H_COPY, Source.TIMELINE, change=Change.READBACKS)
def device_to_host_copies(evidence: Evidence) -> Seen | None:
    """Copies from the device to the host cost time.

    Replayed without them; the host's waits for values are those of `cpu_gpu_sync`. Without a
    replay, the bound is the step less the copies that no kernel hides.
    """
    return _seen(evidence, CopyKind.D2H, "to the host take {share} of the step", ADVICE_TO_HOST)


@diagnosis(FindingType.D2D_COPY, Source.TIMELINE, change=Change.MOVES)
def copies_on_device(evidence: Evidence) -> Seen | None:
    """Copies within the device's memory cost time.

    Replayed without them. Without a replay, the bound is the step less the copies that no kernel
    hides. DistributedDataParallel without `gradient_as_bucket_view` is named: it copies each
    gradient into its bucket, by a kernel, and back, by one of these copies.
    """
    take, site = "on the device take {share} of the step", evidence.traits.get(COPIES_GRADIENTS)
    if site is None or evidence.ranks < 2:
        return _seen(evidence, CopyKind.D2D, take, ADVICE_ON_DEVICE)
    take += ", gradients out of DDP's buckets (gradient_as_bucket_view is off) among them"
    seen = _seen(evidence, CopyKind.D2D, take, (*ADVICE_BUCKETS, *ADVICE_ON_DEVICE))
    return seen and replace(seen, location=location_of(site))


def _seen(evidence: Evidence, kind: CopyKind, take: str, advice: tuple[str, ...]) -> Seen | None:
    copies = [c for c in evidence.figures.copies or () if c.kind == kind.value]
    if not copies:
        return None
    name, share, exposed = kind.value, _sum(copies, "share"), _sum(copies, "exposed_share")
    figures: dict[str, Any] = {
        f"{name}_share": share,
        f"exposed_{name}_share": exposed,
        f"pageable_{name}_share": _sum([each for each in copies if each.pageable], "share"),
        f"{name}_bytes_per_step": _sum(copies, "bytes_per_step"),
        "copies_per_step": _sum(copies, "calls_per_step"),
    }
    return Seen(
        f"copies {take}; no kernel hides {percent(exposed)}",
        measured(Source.TIMELINE, **figures),
        advice,
        bound=gain_without(exposed),
        share=share,
    )


def _sum(copies: Sequence[CopyShare], figure: str) -> float | None:
    """None where one of them was not measured."""
    known = [getattr(each, figure) for each in copies]
    return None if None in known else float(sum(known))
