"""Memory by part of the step and by line, from the allocator's own record of each allocation."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpurun.knobs.callers import is_users_file
from gpurun.records.messages.profile_events import Allocation, MemoryTraceEvent

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
