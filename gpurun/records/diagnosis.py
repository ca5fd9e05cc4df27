"""The document of `gpurun profile --json` and `gpurun diagnose --json`: figures and findings."""

from __future__ import annotations

from gpurun.records.finding import Finding
from gpurun.records.profile_figures import ProfileFigures, ReplayFigures, WhatIf
from gpurun.records.record import record
from gpurun.records.result import RunResult

DIAGNOSIS_SCHEMA = "gpurun/diagnosis@1"


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
    `failed_sources`: profilers that recorded nothing, each with its reason. `replay`: of the rank's
    profiled steps, None without a timeline; `what_if`: the same with changes.
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
    schema: str = DIAGNOSIS_SCHEMA
