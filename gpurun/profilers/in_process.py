"""The sources that the runtime records inside the script's process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from gpurun.measure.run_events import ProcessLog
from gpurun.profilers.api import Profiler
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

    def timeline(self, log: ProcessLog, folder: Path) -> Timeline | None:
        """The ranges of the window."""
        event = log.profile
        if event is None:
            return None
        ranges = tuple(
            Range(begin, end, event.thread, name)
            for name, begin, end in sorted(event.phases, key=lambda each: (each[1], -each[2]))
        )
        steps = tuple(each for each in ranges if each.name == Phase.STEP.value)
        early = event.ended_early
        notes = () if early is None else (f"the window is short: {early}",)
        return _in_window(self, log, steps=steps, ranges=ranges, notes=notes)


class Host(Profiler):
    """Python functions and lines of the thread that trains, by the part of the step they run in.

    A thread of gpurun looks at its stack some two hundred times a second, as py-spy does from
    outside; loops keep their speed, which they lose under a tracing profiler such as cProfile.
    """

    name: ClassVar[str] = "host"
    title: ClassVar[str] = "host profile (samples of the stack)"
    order: ClassVar[int] = 10

    def timeline(self, log: ProcessLog, folder: Path) -> Timeline | None:
        """The functions seen in the window."""
        seen = log.host_samples
        if seen is None:
            return None
        if seen.samples < FEWEST_SAMPLES:
            raise ValueError(f"{seen.samples} samples are too few for a profile")
        return _in_window(
            self,
            log,
            host_sampled_seconds=seen.seconds,
            host_functions=seen.functions,
            host_moments=seen.moments or None,
        )


class Kineto(Profiler):
    """Kernels, copies, calls of CUDA and collectives on a GPU; operators on the CPU.

    On a GPU only the device is recorded: recording the operators of the host too doubles what the
    profiler costs.
    """

    name: ClassVar[str] = "kineto"
    title: ClassVar[str] = "torch.profiler (Kineto)"
    order: ClassVar[int] = 20

    def timeline(self, log: ProcessLog, folder: Path) -> Timeline | None:
        """The trace that the process wrote at the end of its window."""
        trace = folder / f"kineto-{log.process.pid}.json"
        offset = log.process.unix_time_ns - log.process.clock_ns
        return from_kineto.read(trace, offset) if trace.exists() else None


class Allocator(Profiler):
    """Peaks, retries, calls of cudaMalloc and fragmentation of each device in the window."""

    name: ClassVar[str] = "allocator"
    title: ClassVar[str] = "torch's memory statistics"
    order: ClassVar[int] = 30

    def timeline(self, log: ProcessLog, folder: Path) -> Timeline | None:
        """The counters of the window; None without a GPU."""
        if log.profile is None or log.profile.memory is None:
            return None
        return _in_window(
            self, log, memory=log.profile.memory, memory_traces=log.memory_traces or None
        )


class Operators(Profiler):
    """Operators of torch with the shapes of their tensors, on a GPU: in steps behind the window.

    They would make the steps of the window longer. Times are told as of the window's steps.
    """

    name: ClassVar[str] = "operators"
    title: ClassVar[str] = "torch.profiler (operators)"
    order: ClassVar[int] = 40

    def timeline(self, log: ProcessLog, folder: Path) -> Timeline | None:
        """The operators of the trace that the process wrote behind its window."""
        window, trace = log.profile, folder / f"operators-{log.process.pid}.json"
        if window is None or not trace.exists():
            return None
        found = from_kineto.read(trace)
        steps = window.steps / OPERATOR_STEPS
        operators = tuple(
            replace(o, calls=round(o.calls * steps), self_ns=round(o.self_ns * steps))
            for o in found.operators or ()
        )
        return _in_window(self, log, operators=operators, notes=found.notes)


def _in_window(source: Profiler, log: ProcessLog, **measured: Any) -> Timeline | None:
    """What a source measured in the profiled window; None without one."""
    window = log.profile
    if window is None:
        return None
    return Timeline(
        (source.name,), window.begin_ns, window.end_ns, rank=log.process.rank, **measured
    )
