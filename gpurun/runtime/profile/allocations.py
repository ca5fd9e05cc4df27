"""Torch's allocator over the window: its counts, and memory by part of the step and by line."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpurun.knobs.callers import is_users_file
from gpurun.records.messages.profile_events import Allocation, AllocatorState, MemoryTraceEvent


class AllocatorCounts:
    """Counters of each device at the begin of the window, to be compared with those at its end."""

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._begin: dict[int, dict[str, int]] = {}

    def begin(self) -> None:
        """Read the counters; nothing where no device is in use."""
        self._begin = {device: self._stats(device) for device in self._devices()}

    def finish(self) -> tuple[AllocatorState, ...] | None:
        """The counts since then; None if no device is in use."""
        found = tuple(self._state(device) for device in self._devices())
        return found or None

    def _state(self, device: int) -> AllocatorState:
        stats, before = self._stats(device), self._begin.get(device, {})

        def since(name: str) -> int:
            return stats.get(name, 0) - before.get(name, 0)

        return AllocatorState(
            device=device,
            allocated_bytes=stats.get("allocated_bytes.all.peak", 0),
            reserved_bytes=stats.get("reserved_bytes.all.peak", 0),
            total_bytes=self._cuda.get_device_properties(device).total_memory,
            retries=since("num_alloc_retries"),
            device_allocations=since("num_device_alloc"),
            inactive_split_bytes=stats.get("inactive_split_bytes.all.current", 0),
        )

    def _devices(self) -> list[int]:
        """Devices on which torch has allocated anything."""
        if not self._cuda.is_initialized():
            return []
        count = self._cuda.device_count()
        return [d for d in range(count) if self._stats(d).get("reserved_bytes.all.peak", 0)]

    def _stats(self, device: int) -> dict[str, int]:
        return dict(self._cuda.memory_stats(device))


BETWEEN = "between the parts"
MOST_LINES = 10
DEEPEST = 4
"""Parts that are looked at: none nests deeper."""
NOWHERE: Mapping[str, Any] = {"filename": "unknown", "line": 0, "name": ""}
Phases = Sequence[tuple[str, int, int]]
"""Name, begin and end of the parts of the steps."""


def memory_trace(
    device: int, entries: Sequence[Mapping[str, Any]], held: int, phases: Phases, steps: int
) -> MemoryTraceEvent:
    """The trace of a device. `held`: bytes in use at its begin. `phases`: in its own microseconds.

    `entries`: as in `torch.cuda.memory._snapshot()`, in their order.
    """
    phase_at = _phase_finder(phases)
    peaks: dict[str, int] = {}
    lines: dict[tuple[str, int, str, str | None], list[int]] = defaultdict(list)
    for entry in entries:
        phase, size = phase_at(int(entry.get("time_us", 0))), int(entry["size"])
        if entry["action"] == "alloc":
            held += size
            lines[(*_place(entry.get("frames") or ()), phase)].append(size)
        elif entry["action"] == "free_completed":
            held -= size
        name = phase or BETWEEN
        peaks[name] = max(peaks.get(name, 0), held)
    ranked = sorted(lines.items(), key=lambda each: -sum(each[1]))[:MOST_LINES]
    found = tuple(
        Allocation(*place, len(sizes) / steps, sum(sizes) / steps, max(sizes))
        for place, sizes in ranked
    )
    return MemoryTraceEvent(device, steps, peaks, found)


def _phase_finder(phases: Phases) -> Callable[[int], str | None]:
    """The part of the step at a time: of those that nest the innermost."""
    ordered = sorted(phases, key=lambda each: each[1])
    begins = [begin for _, begin, _ in ordered]

    def phase_at(time: int) -> str | None:
        at = bisect_right(begins, time)
        near = reversed(ordered[max(at - DEEPEST, 0) : at])
        return next((name for name, _, end in near if time <= end), None)

    return phase_at


def _place(frames: Sequence[Mapping[str, Any]]) -> tuple[str, int, str]:
    """The innermost line of the user's own, else the innermost line."""
    own = (frame for frame in frames if is_users_file(str(frame["filename"])))
    frame = next(own, next(iter(frames), NOWHERE))
    return str(frame["filename"]), int(frame["line"]), str(frame["name"])
