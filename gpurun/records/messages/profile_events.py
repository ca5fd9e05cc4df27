"""The events of a profiled process about its window of steady steps."""

from __future__ import annotations

from typing import ClassVar

from gpurun.records.record import record

CLOCK_MARK = "gpurun clock "
"""A mark of this name, with the runtime's `perf_counter_ns` behind it, ties two clocks."""


COLLECTION = "garbage collection"
"""Name of the ranges in which Python collected garbage, inside the parts of a step."""


@record
class ProfilerState:
    """One profiler in the window. `failure`: why it did not record, None if it did.

    `seconds`: what its start and its stop took together; the script waited for them.
    """

    name: str
    failure: str | None
    seconds: float


@record
class AllocatorState:
    """torch's caching allocator of one device over the window: counts in it, peaks so far."""

    device: int
    allocated_bytes: int
    reserved_bytes: int
    total_bytes: int
    retries: int
    device_allocations: int
    inactive_split_bytes: int


@record
class Allocation:
    """What one line of the script allocates on a device in one part of a step.

    `calls` and `bytes` are means of a step. `phase`: None outside of all parts.
    """

    file: str
    line: int
    function: str
    phase: str | None
    calls: float
    bytes: float
    largest_bytes: int


@record
class MemoryTraceEvent:
    """Each allocation on a device in `steps` steps behind the window.

    `peak_bytes`: the most that tensors held in each part of a step. `allocations`: the lines that
    allocate most.
    """

    kind: ClassVar[str] = "memory_trace"
    device: int
    steps: int
    peak_bytes: dict[str, int]
    allocations: tuple[Allocation, ...]


@record
class ProfileEvent:
    """The profiled window, from the end of a step to the end of a later one.

    `first_step`: steps of the clock before it. `phases`: [name, begin_ns, end_ns] of each part of a
    step and of the steps themselves. `ended_early`: why, None where it has all its steps.
    `number`: of the window in this process, from 1.
    """

    kind: ClassVar[str] = "profile"
    begin_ns: int
    end_ns: int
    first_step: int
    steps: int
    thread: int
    phases: tuple[tuple[str, int, int], ...]
    profilers: tuple[ProfilerState, ...]
    memory: tuple[AllocatorState, ...] | None
    ended_early: str | None = None
    number: int = 1


@record
class FunctionSamples:
    """One function of the stepping thread in one part of the step, by samples of its stack.

    `self_seconds`: in its own lines; of those `blocked_seconds` asleep or waiting for storage, a
    lock or another thread, None where nobody counts. `total_seconds`: with what it calls.
    `line`: where most of the time passes. `users_own`: neither a library nor Python's.
    """

    file: str
    line: int
    function: str
    phase: str | None
    users_own: bool
    self_seconds: float
    total_seconds: float
    blocked_seconds: float | None


SampleMoment = tuple[int, tuple[tuple[int, int], ...]]
"""Nanoseconds, and a function's place and line for each frame."""


@record
class HostSamplesEvent:
    """All functions seen in the window. `seconds`: the time that the samples stand for.

    `moments`: of each sample its time on the runtime's clock, and its stack from the innermost
    function out: places in `functions`, and the lines. Functions of libraries are only in it if
    they are the innermost.
    """

    kind: ClassVar[str] = "host_samples"
    seconds: float
    samples: int
    functions: tuple[FunctionSamples, ...]
    moments: tuple[SampleMoment, ...] = ()
