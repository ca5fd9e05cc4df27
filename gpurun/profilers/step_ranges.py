"""gpurun's own ranges: the steps of the window, and the parts of each."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from gpurun.measure.run_events import ProcessLog
from gpurun.profilers.api import Profiler
from gpurun.timeline.model import Phase, Range, Timeline


class Steps(Profiler):
    """Steps, data, forward, backward and optimizer on the host's clock; always there."""

    name: ClassVar[str] = "steps"
    title: ClassVar[str] = "step clock"
    default: ClassVar[bool] = True
    inside: ClassVar[bool] = True
    order: ClassVar[int] = 0

    def timeline(self, log: ProcessLog, folder: Path) -> Timeline | None:
        """The ranges of the window."""
        event = log.profile
        if event is None:
            return None
        ranges = tuple(
            Range(begin, end, event.thread, name)
            for name, begin, end in sorted(event.phases, key=lambda each: (each[1], -each[2]))
        )
        return Timeline(
            sources=(self.name,),
            window_begin_ns=event.begin_ns,
            window_end_ns=event.end_ns,
            rank=log.process.rank,
            steps=tuple(each for each in ranges if each.name == Phase.STEP.value),
            ranges=ranges,
            notes=()
            if event.ended_early is None
            else (f"the window is short: {event.ended_early}",),
        )
