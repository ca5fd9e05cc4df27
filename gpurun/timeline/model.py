"""One timeline of one rank: what every profiling source fills and every diagnosis reads.

All times are nanoseconds on one clock. A field that no source measured is None, never empty: an
empty sequence says that a source looked and saw nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpurun.errors import GpurunError
from gpurun.records.messages.profile_events import (
    AllocatorState,
    FunctionSamples,
    MemoryTraceEvent,
    SampleMoment,
)


class Group(enum.Enum):
    """Kind of work that a kernel or an operator does."""

    MATMUL = "matmul"
    CONV = "conv"
    ATTENTION = "attention"
    NORM = "norm"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    OTHER = "other"


class CopyKind(enum.Enum):
    """Direction of a copy: `h` is the host, `d` a device. `SET`: device memory is filled."""

    H2D = "h2d"
    D2H = "d2h"
    D2D = "d2d"
    SET = "memset"
    OTHER = "other"


class Phase(enum.Enum):
    """Part of a step that gpurun marks by itself; a `Range` of one has its value as its name."""

    EPOCH = "epoch"
    STEP = "step"
    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


MODEL_PHASES = ("data", "forward", "backward", "optimizer")
"""Names of the phases in which the loader, the model or the optimizer is at work."""
Dimensions = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class KernelKind:
    """What all launches of one kernel in one shape share.

    `tensor_core`: None where its name does not tell. `message_bytes`: of a collective.
    """

    name: str
    group: Group = Group.OTHER
    tensor_core: bool | None = None
    grid: Dimensions | None = None
    block: Dimensions | None = None
    message_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel as it ran. `correlation` is that of the runtime call which launched it."""

    begin_ns: int
    end_ns: int
    device: int
    stream: int
    correlation: int
    kind: KernelKind

    @property
    def name(self) -> str:
        """The kernel's demangled name."""
        return self.kind.name

    @property
    def group(self) -> Group:
        """The kind of work that it does."""
        return self.kind.group


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy as it ran on the device. `pageable`: the host's side was not pinned."""

    begin_ns: int
    end_ns: int
    device: int
    stream: int
    correlation: int
    bytes: int
    kind: CopyKind
    pageable: bool | None


@dataclass(frozen=True, slots=True)
class Awaited:
    """What the call with this correlation waits for, as the source tells it.

    `stream`: its work, None: that of all streams. `waiting_stream`: waits in place of the host,
    from then on. `recorded`: correlation of the call that recorded the event, 0: none is told.
    """

    begin_ns: int
    end_ns: int
    correlation: int
    recorded: int
    stream: int | None
    waiting_stream: int | None


@dataclass(frozen=True, slots=True)
class RuntimeCall:
    """One call of the CUDA runtime or driver, by its name without a version's suffix."""

    begin_ns: int
    end_ns: int
    thread: int
    correlation: int
    name: str


@dataclass(frozen=True, slots=True)
class Range:
    """A named stretch of a host thread: gpurun's own phases, NVTX ranges, `record_function`."""

    begin_ns: int
    end_ns: int
    thread: int
    name: str


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call of an operator of torch. `shapes`: of its tensors, None where not recorded."""

    begin_ns: int
    end_ns: int
    thread: int
    name: str
    shapes: str | None


@dataclass(frozen=True, slots=True)
class Operator:
    """All calls of one operator of torch on the host, of one set of shapes where they are recorded.

    `self_ns` leaves inner operators out.
    """

    name: str
    group: Group
    calls: int
    self_ns: int
    shapes: str | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """A device as the source describes it."""

    index: int
    name: str
    multiprocessors: int | None = None
    capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class KernelMetrics:
    """What Nsight Compute measured of one launch. Percent of peak; None where not collected.

    `branch_efficiency_percent` holds threads active an instruction, of a warp's 32.
    `multiprocessors`: of the device.
    """

    name: str
    group: Group
    duration_ns: float | None
    grid: Dimensions | None
    block: Dimensions | None
    registers: int | None
    shared_memory_bytes: int | None
    sm_percent: float | None
    dram_percent: float | None
    occupancy_percent: float | None
    theoretical_occupancy_percent: float | None
    branch_efficiency_percent: float | None
    occupancy_limits: Mapping[str, float]
    """Blocks that fit a multiprocessor at once, by what limits them: registers, shared_memory,
    block_size, barriers, blocks. The least of them is the limit."""
    multiprocessors: int | None = None

    @property
    def is_measured(self) -> bool:
        """Some counter that a finding could rest on was measured."""
        counters = (self.sm_percent, self.dram_percent, self.occupancy_percent)
        return any(each is not None for each in (*counters, self.branch_efficiency_percent))


@dataclass(frozen=True)
class Timeline:
    """What was measured of one rank in a window of steady steps.

    `sources`: names of the profilers that filled it ("kineto", "nsys", "ncu", "host", "steps" …).
    Sequences are in ascending order of their begin. Their entries may lie outside of the window.
    """

    sources: tuple[str, ...]
    window_begin_ns: int
    window_end_ns: int
    rank: int | None = None
    devices: Sequence[Device] | None = None
    steps: Sequence[Range] | None = None
    ranges: Sequence[Range] | None = None
    kernels: Sequence[Kernel] | None = None
    copies: Sequence[Copy] | None = None
    awaited: Sequence[Awaited] | None = None
    runtime_calls: Sequence[RuntimeCall] | None = None
    operators: Sequence[Operator] | None = None
    host_functions: Sequence[FunctionSamples] | None = None
    host_sampled_seconds: float | None = None
    """Length of the time in which the host functions were seen."""
    host_moments: Sequence[SampleMoment] | None = None
    """When each of them was seen; None of recordings that do not tell."""
    memory: Sequence[AllocatorState] | None = None
    memory_traces: Sequence[MemoryTraceEvent] | None = None
    kernel_metrics: Sequence[KernelMetrics] | None = None
    notes: tuple[str, ...] = ()
    """What a source could not see here, a sentence each."""

    @property
    def window_ns(self) -> int:
        """Length of the window."""
        return self.window_end_ns - self.window_begin_ns

    def named(self, *names: str) -> list[Range]:
        """Its ranges of these names."""
        return [each for each in self.ranges or () if each.name in names]

    def a_step(self, amount: float) -> float | None:
        """An amount of the whole window as that of a mean step; None where none are marked."""
        return amount / len(self.steps) if self.steps else None


MALFORMED = (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""Errors of reading values that are absent, of another type, or out of bounds."""
BOUNDS = (2**31, 2**16, 2**16)
"""CUDA's own, of a grid."""


def launch_dimensions(x: int, y: int, z: int) -> Dimensions:
    """The dimensions of a grid or block; `ValueError` for any that no kernel can have."""
    for each, bound in zip((x, y, z), BOUNDS, strict=True):
        if type(each) is not int or not 0 <= each < bound:
            raise ValueError(f"no kernel has the dimensions {x!r}, {y!r}, {z!r}"[:80])
    return x, y, z


def malformed(path: Path, why: str) -> GpurunError:
    """`why`: the place in the file and what is wrong with it."""
    return GpurunError(f"{path} is damaged: {' '.join(why.split())}", "record or export it again")
