"""The sources that the runtime records inside the script's process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from gpurun.measure.run_events import ProcessLog
from gpurun.profilers.api import Profiler
from gpurun.records.messages.profile_events import ProfileEvent
from gpurun.records.spec import OPERATOR_STEPS
from gpurun.timeline import from_kineto
from gpurun.timeline.model import Phase, Range, Timeline

FEWEST_SAMPLES = 20
"""A tenth of a second: of fewer, one sample more or less is a finding."""


class Steps(Profiler):
    """Steps, data, forward, backward and optimizer on the host's clock; always there."""

    name: ClassVar[str] = "steps"
    title: ClassVar[str] = "step clock"
    order: ClassVar[int] = 0

    def timeline(self, log: ProcessLog, window: ProfileEvent, folder: Path) -> Timeline | None:
        """The ranges of the window."""
        ranges = tuple(
            Range(begin, end, window.thread, name)
            for name, begin, end in sorted(window.phases, key=lambda each: (each[1], -each[2]))
        )
        steps = tuple(each for each in ranges if each.name == Phase.STEP.value)
        early = window.ended_early
        notes = () if early is None else (f"the window is short: {early}",)
        return self.in_window(log, window, steps=steps, ranges=ranges, notes=notes)


class Host(Profiler):
    """Python functions and lines of the thread that trains, by the part of the step they run in.

    A thread of gpurun looks at its stack some two hundred times a second, as py-spy does from
    outside; loops keep their speed, which they lose under a tracing profiler such as cProfile.
    """

    name: ClassVar[str] = "host"
    title: ClassVar[str] = "host profile (samples of the stack)"
    order: ClassVar[int] = 10

    def timeline(self, log: ProcessLog, window: ProfileEvent, folder: Path) -> Timeline | None:
        """The functions seen in the window."""
        seen = log.host_samples
        if seen is None:
            return None
        if seen.samples < FEWEST_SAMPLES:
            raise ValueError(f"{seen.samples} samples are too few for a profile")
        told = {"host_functions": seen.functions, "host_moments": seen.moments or None}
        return self.in_window(log, window, host_sampled_seconds=seen.seconds, **told)


class Kineto(Profiler):
    """Kernels, copies, calls of CUDA and collectives on a GPU; operators on the CPU.

    On a GPU only the device is recorded: recording the operators of the host too doubles what the
    profiler costs.
    """

    name: ClassVar[str] = "kineto"
    title: ClassVar[str] = "torch.profiler (Kineto)"
    order: ClassVar[int] = 20

    def timeline(self, log: ProcessLog, window: ProfileEvent, folder: Path) -> Timeline | None:
        """The trace that the process wrote at the end of its window."""
        trace = folder / f"kineto-{log.process.pid}.json"
        offset = log.process.unix_time_ns - log.process.clock_ns
        return from_kineto.read(trace, offset) if trace.exists() else None


class Allocator(Profiler):
    """Peaks, retries, calls of cudaMalloc and fragmentation of each device in the window."""

    name: ClassVar[str] = "allocator"
    title: ClassVar[str] = "torch's memory statistics"
    order: ClassVar[int] = 30

    def timeline(self, log: ProcessLog, window: ProfileEvent, folder: Path) -> Timeline | None:
        """The counters of the window; None without a GPU."""
        if window.memory is None:
            return None
        traces = log.memory_traces or None
        return self.in_window(log, window, memory=window.memory, memory_traces=traces)


class Operators(Profiler):
    """Operators of torch with the shapes of their tensors, on a GPU: in steps behind the window.

    They would make the steps of the window longer. Times are told as of the window's steps.
    """

    name: ClassVar[str] = "operators"
    title: ClassVar[str] = "torch.profiler (operators)"
    order: ClassVar[int] = 40

    def timeline(self, log: ProcessLog, window: ProfileEvent, folder: Path) -> Timeline | None:
        """The operators of the trace that the process wrote behind its window."""
        trace = folder / f"operators-{log.process.pid}.json"
        if not trace.exists():
            return None
        found, steps = from_kineto.read(trace), window.steps / OPERATOR_STEPS
        operators = tuple(
            replace(o, calls=round(o.calls * steps), self_ns=round(o.self_ns * steps))
            for o in found.operators or ()
        )
        return self.in_window(log, window, operators=operators, notes=found.notes)
