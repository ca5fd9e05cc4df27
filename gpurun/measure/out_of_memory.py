"""A run that ran out of memory, in words: what asked, what held it, what would have fitted."""

from __future__ import annotations

from collections.abc import Iterable

from gpurun.formatting.number_text import byte_size, percent
from gpurun.measure.run_events import ProcessLog
from gpurun.records.events import OutOfMemoryEvent
from gpurun.records.spec import MEMORY_SNAPSHOT

KEPT = ("parameters", "gradients", "optimizer state")
"""These parts are as large with any batch."""


def memory_notes(logs: Iterable[ProcessLog]) -> list[str]:
    """Three lines about the last failed allocation; none if none failed."""
    for log in (log for log in reversed([*logs]) if log.out_of_memory is not None):
        event, batches = log.out_of_memory, {loader.batch_size for loader in log.loaders}
        assert event is not None
        held = ", ".join(f"{part} {byte_size(size)}" for part, size in event.part_bytes.items())
        largest = ", ".join(f"{what} {byte_size(size)}" for what, size in event.largest)
        return [
            f"out of memory{f' at {event.where}' if event.where else ''}: "
            f"{byte_size(event.asked_bytes)} asked for, {byte_size(event.free_bytes)} of "
            f"{byte_size(event.total_bytes)} free; {held}",
            what_fits(event, batches.pop() if len(batches) == 1 else None),
            f"largest: {largest} (all: *-{MEMORY_SNAPSHOT}, for pytorch.org/memory_viz)",
        ]
    return []


def what_fits(event: OutOfMemoryEvent, batch_size: int | None) -> str:
    """The largest part of the batch that can have fitted: some of what it needs had yet to come."""
    held = sum(event.part_bytes.values())
    kept = sum(event.part_bytes.get(part, 0) for part in KEPT)
    share = (event.free_bytes + event.reserved_bytes - kept) / (held - kept + event.asked_bytes)
    if share >= 1:
        pieces = byte_size(event.reserved_bytes - held)
        cure = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True joins them"
        return f"{pieces} are reserved in pieces that are too small for it: {cure}"
    known = "" if batch_size is None else f" ({int(batch_size * share)} of {batch_size})"
    cure = "gpurun --optimize looks for changes that save memory and train the same"
    return f"at most {percent(share)} of this batch would have fitted{known}; {cure}"
