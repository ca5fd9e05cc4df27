"""The events of a process that exits."""

from __future__ import annotations

from typing import ClassVar

from gpurun.records.record import record


@record
class StopEvent:
    """The trial stopped itself. `reason`: "enough" or "max_steps".

    The measured window runs from `window_begin_ns` (None: it never began, or turns tell it) to
    `window_end_ns`.
    """

    kind: ClassVar[str] = "stop"
    reason: str
    steps: int
    window_begin_ns: int | None
    window_end_ns: int


@record
class ExitRecordEvent:
    """A rank's or a trial's python exits; `error`: the uncaught exception by which it does, None
    without one. `lacks_input`: `input()` raised it, since there was nothing to read.
    """

    kind: ClassVar[str] = "exit_record"
    unix_time_ns: int
    error: str | None
    lacks_input: bool = False


@record
class EndEvent:
    """Last line of a process that ended in good order."""

    kind: ClassVar[str] = "end"
    clock_ns: int
    peak_rss_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    allocator_retries: int | None
    cpu_seconds: float | None
    saves: int | None = None
    """Calls of `torch.save`, and the seconds that they took together; None: nobody counted."""
    save_seconds: float | None = None
