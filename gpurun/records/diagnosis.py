"""The documents of `gpurun profile` and `gpurun diagnose`: one profile, or two compared."""

from __future__ import annotations

import enum

from gpurun.records.finding import Finding, FindingType
from gpurun.records.messages.profile_events import (
    AllocatorState,
    FunctionSamples,
    MemoryTraceEvent,
)
from gpurun.records.profile_figures import ProfileFigures, ReplayFigures, StepPicture, WhatIf
from gpurun.records.record import record
from gpurun.records.result import RunResult

DIAGNOSIS_SCHEMA = "gpurun/diagnosis@1"
PROFILE_COMPARISON_SCHEMA = "gpurun/profile_comparison@1"


@record
class AbsentSource:
    """A source that was not there, and what to do to have it."""

    name: str
    todo: str


@record
class DiagnosisReport:
    """A training's use of its device, and the causes that slow it down.

    `subject`: the run folder or recording that was read. `sources`: what was measured, for instance
    "step clock", "NVML", "Kineto". `steps_profiled`: steps of the profiled window, None without
    one. `overhead_percent`: by how much profiling slowed its steps, None where not known.
    `figures`: of the rank that was looked at (`rank`), None without a timeline; `other_ranks`:
    those of the others. `findings`: the most severe first. `result`: the run's own record.
    `failed_sources`: profilers that recorded nothing, or not all there was, each with its reason.
    `replay`: of the rank's profiled steps, None without a timeline; `what_if`: the same with
    changes. `step_picture`: one of these steps. `host_functions`: of the thread that trains, the
    longest first. `memory`: torch's, by device; `memory_traces`: its parts and largest allocations,
    from further steps.
    """

    subject: str
    sources: tuple[str, ...]
    absent_sources: tuple[AbsentSource, ...]
    steps_profiled: int | None
    overhead_percent: float | None
    figures: ProfileFigures | None
    findings: tuple[Finding, ...]
    rank: int | None = None
    other_ranks: dict[str, ProfileFigures] | None = None
    result: RunResult | None = None
    failed_sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    replay: ReplayFigures | None = None
    what_if: tuple[WhatIf, ...] = ()
    step_picture: StepPicture | None = None
    host_functions: tuple[FunctionSamples, ...] = ()
    host_sampled_seconds: float | None = None
    memory: tuple[AllocatorState, ...] = ()
    memory_traces: tuple[MemoryTraceEvent, ...] = ()
    schema: str = DIAGNOSIS_SCHEMA


class ComparisonBasis(enum.Enum):
    """The ground on which changes explain the difference in step time.

    `REPLAY`: both profiles' graphs match their steps, and each change was taken out of them.
    `DEVICE_TIME`: the time in which the device was busy with each thing, or idle for each cause.
    `STEP_SPLIT`: the parts of the mean step on the host's clock. `OPERATORS`: own time of torch's
    operators on the host.
    """

    REPLAY = "replay"
    DEVICE_TIME = "device_time"
    STEP_SPLIT = "step_split"
    OPERATORS = "operators"


class ThingKind(enum.Enum):
    """The kinds of things that change between two profiles.

    `CALL`: of the CUDA runtime. `HOST`: the host's own work between calls, by the part of the step.
    `IDLE`: idle time of the device, by cause. `PART`: a part of the step on the host's clock.
    `FUNCTION`: of Python, in its own lines, by samples of the training's thread. `OTHERS`: all
    smaller changes together.
    """

    KERNEL = "kernel"
    COPY = "copy"
    CALL = "call"
    HOST = "host"
    IDLE = "idle"
    OPERATOR = "operator"
    FUNCTION = "function"
    PART = "part"
    OTHERS = "others"


class ChangeKind(enum.Enum):
    """How a thing changed. `MORE` and `FEWER`: calls a step, rather than the time of each."""

    ADDED = "added"
    LOST = "lost"
    MORE = "more calls"
    FEWER = "fewer calls"
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    SEVERAL = "several"


@record
class ProfileChange:
    """One thing in both profiles. Times are milliseconds a step, calls are those of a step.

    The time of kernels, copies and idle causes is the device's, that of all others the host's; a
    call's includes its waits. `explained_ms`: of the difference in step time, positive where the
    step became longer; None where other changes hold it already. `explained_share`: the same as a
    fraction of the difference; None too where the steps do not differ measurably.
    """

    kind: ThingKind
    name: str
    change: ChangeKind
    before_ms: float | None
    after_ms: float | None
    before_calls: float | None = None
    after_calls: float | None = None
    explained_ms: float | None = None
    explained_share: float | None = None


@record
class KernelMatch:
    """Kernels taken for the same one although their signatures differ, by their short name."""

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@record
class CauseChange:
    """A finding that one profile lacks, or whose level differs. `change`: of its severity."""

    type: FindingType
    change: ChangeKind
    before: Finding | None
    after: Finding | None


@record
class ComparedProfile:
    """One of the two profiles.

    `step_ms`: the step that is compared. `steps`: profiled ones, None without a timeline. `rank`:
    the one that was looked at. `idle_share`: of the profiled time, in which the device idled.
    """

    subject: str
    step_ms: float
    steps: int | None
    rank: int | None
    samples_per_step: float | None
    idle_share: float | None


@record
class ProfileComparison:
    """Two profiles compared, the earlier one first.

    `difference_ms`: by how much the step became longer; negative: shorter. `changes`: those that
    explain most of it first, then those that explain none by themselves; the `explained_ms` of all
    and `not_explained_ms` add up to the difference. `measured`: the steps that are compared, in
    words. `why_no_replay`: None if the basis is the replay. `replay_error_ms`: by how much both
    replayed steps together are off, None without a replay. `kernels_matched`: kinds of kernels that
    both have; `renamed_kernels`: those among them whose signatures differ. `causes`: findings that
    came, went or changed their level.
    """

    before: ComparedProfile
    after: ComparedProfile
    difference_ms: float
    basis: ComparisonBasis
    measured: str
    why_no_replay: str | None
    replay_error_ms: float | None
    changes: tuple[ProfileChange, ...]
    explained_ms: float
    not_explained_ms: float
    kernels_matched: int | None = None
    renamed_kernels: tuple[KernelMatch, ...] = ()
    causes: tuple[CauseChange, ...] = ()
    notes: tuple[str, ...] = ()
    schema: str = PROFILE_COMPARISON_SCHEMA
