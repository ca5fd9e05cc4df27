"""torch's caching allocator."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from gpurun.measure.run_events import ProcessLog
from gpurun.profilers.api import Profiler
from gpurun.timeline.model import Timeline


class Allocator(Profiler):
    """Peaks, retries, calls of cudaMalloc and fragmentation of each device in the window."""

    name: ClassVar[str] = "allocator"
    title: ClassVar[str] = "torch's memory statistics"
    default: ClassVar[bool] = True
    inside: ClassVar[bool] = True
    order: ClassVar[int] = 30

    def timeline(self, log: ProcessLog, folder: Path) -> Timeline | None:
        """The counters of the window; None without a GPU."""
        window = log.profile
        if window is None or window.memory is None:
            return None
        return Timeline(
            sources=(self.name,),
            window_begin_ns=window.begin_ns,
            window_end_ns=window.end_ns,
            rank=log.process.rank,
            memory=window.memory,
        )
