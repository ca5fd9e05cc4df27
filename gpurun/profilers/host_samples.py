"""Host profile: samples of the stepping thread's stack."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from gpurun.measure.run_events import ProcessLog
from gpurun.profilers.api import Profiler
from gpurun.timeline.model import Timeline

FEWEST_SAMPLES = 20
"""A tenth of a second: of fewer, one sample more or less is a finding."""


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
        if seen.samples < FEWEST_SAMPLES:
            raise ValueError(f"{seen.samples} samples are too few for a profile")
        return Timeline(
            sources=(self.name,),
            window_begin_ns=window.begin_ns,
            window_end_ns=window.end_ns,
            rank=log.process.rank,
            host_sampled_seconds=seen.seconds,
            host_functions=seen.functions,
            host_moments=seen.moments or None,
        )
