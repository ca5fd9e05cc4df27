"""All findings of one run, ranked, and their document: figures, and what would say more.

The kinds of bottleneck are found by walking their folder.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import gpurun.diagnoses.kinds as folder
from gpurun.diagnoses.api import Diagnosis
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.records.diagnosis import AbsentSource, DiagnosisReport
from gpurun.records.finding import WARNING, Finding, FindingType
from gpurun.replay.replay_check import StepTimes, replayed_timeline
from gpurun.timeline.model import Timeline

TODO = {
    Source.STEPS: "run the script under gpurun",
    Source.TIMELINE: "gpurun profile SCRIPT",
    Source.HOST: "gpurun profile SCRIPT",
    Source.DEVICE: "gpurun doctor says why NVML does not answer",
    Source.ACTIVITY: "needs a Hopper GPU or later, or DCGM (dcgmi)",
    Source.KERNELS: "gpurun profile --sources steps,host,kineto,allocator,ncu SCRIPT",
}
"""The way to get a source that is absent."""
ON_GPU = (Source.TIMELINE, Source.DEVICE, Source.ACTIVITY, Source.KERNELS)
SYMPTOMS = {
    FindingType.KERNEL_EFFICIENCY: {
        FindingType.SMALL_BATCH,
        FindingType.OCCUPANCY,
        FindingType.WARP_EFFICIENCY,
        FindingType.PRECISION,
        FindingType.MEMORY_BANDWIDTH,
    },
    FindingType.LAUNCH_BOUND: {FindingType.SMALL_BATCH},
}
"""Findings that come after the one of these that explains them: kernels that do not fill the
device, and kernels that are short because the batch is small."""


def diagnosis_report(
    evidence: Evidence,
    subject: str,
    *,
    overhead_percent: float | None = None,
    failed_sources: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    timelines: Sequence[Timeline] = (),
    step_times: StepTimes | None = None,
) -> DiagnosisReport:
    """All findings, with their figures. `overhead_percent`: of the profiled steps.

    `timelines`: of all ranks. `step_times`: of the rank that is looked at.
    """
    absent = [s for s in TODO if s not in evidence.sources and (evidence.on_gpu or s not in ON_GPU)]
    timeline = evidence.timeline
    others = [each for each in timelines if timeline is not None and each.rank != timeline.rank]
    figures, replay = (
        (None, None)
        if timeline is None
        else replayed_timeline(timeline, step_times, others, workers=bool(evidence.workers))
    )
    matched = figures is not None and figures.mismatch is None
    evidence = replace(evidence, replay=replay if matched else None)
    return DiagnosisReport(
        subject=subject,
        sources=tuple(source.value for source in Source if source in evidence.sources),
        absent_sources=tuple(AbsentSource(source.value, TODO[source]) for source in absent),
        steps_profiled=evidence.figures.steps,
        overhead_percent=overhead_percent,
        figures=None if timeline is None else evidence.figures,
        findings=diagnose(evidence),
        rank=evidence.rank,
        other_ranks={
            str(rank): figures
            for rank, figures in enumerate(evidence.rank_figures)
            if figures is not evidence.figures
        }
        or None,
        result=evidence.result,
        failed_sources=failed_sources,
        notes=(*notes, *(() if timeline is None else timeline.notes)),
        replay=figures,
        what_if=() if replay is None else replay.what_if(matched=matched),
    )


@cache
def all_diagnoses() -> tuple[Diagnosis, ...]:
    """Every kind of bottleneck, in the order of the finding types."""
    for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
        importlib.import_module(module.name)
    order = list(FindingType)
    kinds = Diagnosis.__subclasses__()
    found = [kind() for kind in kinds if kind.__module__.startswith(folder.__name__)]
    return tuple(sorted(found, key=lambda diagnosis: order.index(diagnosis.type)))


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """All findings, the most severe first; of equal ones that with the larger gain.

    Severity rises with the gain. A symptom without a gain is no more severe than its cause; one
    with a gain comes after a cause of its level.
    """
    found = {d.type: f for d in all_diagnoses() if (f := d.find(evidence)) is not None}
    explained = {}
    for kind in SYMPTOMS.keys() & found.keys():
        symptom, cause = found[kind], _cause(kind, found)
        if cause is not None and not _gain(symptom):
            found[kind] = symptom = replace(symptom, severity=min(symptom.severity, cause.severity))
        if cause is not None and cause.level == symptom.level:
            explained[kind] = min(symptom.severity, cause.severity)

    def order(finding: Finding) -> tuple[float, bool, float]:
        rank = explained.get(finding.type, finding.severity)
        return -rank, finding.type in explained, -_gain(finding)

    return tuple(sorted(found.values(), key=order))


def _cause(kind: FindingType, found: Mapping[FindingType, Finding]) -> Finding | None:
    """The most severe finding that explains this kind, if it is a warning at least."""
    causes = (found[each] for each in SYMPTOMS[kind] & found.keys())
    known = [cause for cause in causes if cause.severity >= WARNING]
    return max(known, key=lambda cause: cause.severity, default=None)


def _gain(finding: Finding) -> float:
    return finding.replayed_gain or finding.gain_upper_bound or 0.0
