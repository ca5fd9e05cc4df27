"""Host profile: samples of the stepping thread's stack."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from gpurun.measure.run_events import ProcessLog
from gpurun.profilers.api import Profiler
from gpurun.timeline.model import HostFunction, Phase, Timeline


class Host(Profiler):
    """Python functions and lines of the thread that trains, by the part of the step they run in.

    A thread of gpurun looks at its stack some two hundred times a second, as py-spy does from
    outside; loops keep their speed, which they lose under a tracing profiler such as cProfile.
    """

    name: ClassVar[str] = "host"
    title: ClassVar[str] = "host profile (samples of the stack)"
    default: ClassVar[bool] = True
    inside: ClassVar[bool] = True
    order: ClassVar[int] = 10

    def timeline(self, log: ProcessLog, folder: Path) -> Timeline | None:
        """The functions seen in the window."""
        seen, window = log.host_samples, log.profile
        if seen is None or window is None:
            return None
        phases = {phase.value: phase for phase in Phase}
        return Timeline(
            sources=(self.name,),
            window_begin_ns=window.begin_ns,
            window_end_ns=window.end_ns,
            rank=log.process.rank,
            host_sampled_seconds=seen.seconds,
            host_functions=tuple(
                HostFunction(
                    file=each.file,
                    line=each.line,
                    function=each.function,
                    seconds_self=each.self_seconds,
                    seconds_total=each.total_seconds,
                    users_own=each.users_own,
                    phase=phases.get(each.phase or ""),
                    blocked_seconds=each.blocked_seconds,
                )
                for each in seen.functions
            ),
        )
