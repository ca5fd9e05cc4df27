"""All findings of one run, ranked, and their document: figures, and what would say more."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import gpurun.diagnoses.kinds as folder
from gpurun.diagnoses.api import KINDS, Diagnosis
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.records.diagnosis import AbsentSource, DiagnosisReport
from gpurun.records.finding import WARNING, Finding, FindingType
from gpurun.replay.replay_check import Replayed, StepTimes, replayed_timeline
from gpurun.timeline.model import Timeline
from gpurun.timeline.step_picture import step_picture

TODO = {
    Source.STEPS: "run the script under gpurun",
    Source.TIMELINE: "gpurun profile SCRIPT",
    Source.HOST: "gpurun profile SCRIPT",
    Source.DEVICE: "gpurun doctor says why NVML does not answer",
    Source.ACTIVITY: "needs a Hopper GPU or later, or DCGM (dcgmi)",
    Source.KERNELS: "gpurun profile --sources steps,host,kineto,allocator,ncu SCRIPT",
}
"""The way to get a source that is absent."""
MOST_FUNCTIONS = 10
"""Functions of the host that the document lists."""
ON_GPU = (Source.TIMELINE, Source.DEVICE, Source.ACTIVITY, Source.KERNELS)
SYMPTOMS = {
    FindingType.KERNEL_EFFICIENCY: {
        FindingType.SMALL_BATCH, FindingType.OCCUPANCY, FindingType.WARP_EFFICIENCY,
        FindingType.PRECISION, FindingType.MEMORY_BANDWIDTH,
    },
    FindingType.LAUNCH_BOUND: {FindingType.SMALL_BATCH},
}  # fmt: skip
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
    """All findings, with their figures. `overhead_percent`: of the profiled steps. `timelines`: of
    all ranks. `step_times`: of the rank that is looked at.
    """
    absent = [s for s in TODO if s not in evidence.sources and (evidence.on_gpu or s not in ON_GPU)]
    evidence, replayed = with_replay(evidence, step_times, timelines)
    timeline, (figures, replay) = evidence.timeline, replayed or (None, None)
    ranks = {str(rank): of for rank, of in enumerate(evidence.rank_figures)}
    longest = sorted(evidence.host_functions, key=lambda each: -each.self_seconds)
    unseen = dict.fromkeys(note for each in timelines for note in each.notes)
    return DiagnosisReport(
        subject=subject,
        sources=tuple(source.value for source in Source if source in evidence.sources),
        absent_sources=tuple(AbsentSource(source.value, TODO[source]) for source in absent),
        steps_profiled=evidence.figures.steps,
        overhead_percent=overhead_percent,
        figures=None if timeline is None else evidence.figures,
        findings=diagnose(evidence),
        rank=evidence.rank,
        other_ranks={r: of for r, of in ranks.items() if of is not evidence.figures} or None,
        result=evidence.result,
        failed_sources=(*failed_sources, *unseen),
        notes=notes,
        replay=figures,
        what_if=() if replay is None else replay.what_if(matched=evidence.replay is not None),
        step_picture=None if timeline is None else step_picture(timeline),
        host_functions=tuple(longest[:MOST_FUNCTIONS]),
        host_sampled_seconds=None if timeline is None else timeline.host_sampled_seconds,
        memory=tuple(evidence.memory),
        memory_traces=() if timeline is None else tuple(timeline.memory_traces or ()),
    )


def with_replay(
    evidence: Evidence, times: StepTimes | None, timelines: Sequence[Timeline] = ()
) -> tuple[Evidence, Replayed | None]:
    """The evidence with its replay, if that matches, and the replay as it is."""
    timeline = evidence.timeline
    if timeline is None:
        return evidence, None
    others = [each for each in timelines if each.rank != timeline.rank]
    replayed = replayed_timeline(timeline, times, others, workers=bool(evidence.workers))
    matched = replayed[0].mismatch is None
    return replace(evidence, replay=replayed[1] if matched else None), replayed


@cache
def all_diagnoses() -> tuple[Diagnosis, ...]:
    """Every kind of bottleneck, found by walking their folder, in the order of the types."""
    for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
        importlib.import_module(module.name)
    order = list(FindingType)
    return tuple(sorted(KINDS, key=lambda kind: order.index(kind.type)))


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """All findings, the most severe first; of equal ones that with the larger gain.

    Severity rises with the gain. A symptom without a gain is no more severe than its cause; one
    with a gain comes after a cause of its level.
    """
    found = {d.type: f for d in all_diagnoses() if (f := d.find(evidence)) is not None}
    explained = {}
    for kind, explaining in SYMPTOMS.items():
        known = [found[each] for each in explaining & found.keys()]
        cause = max(known, key=lambda each: each.severity, default=None)
        if kind not in found or cause is None or cause.severity < WARNING:
            continue
        least = min(found[kind].severity, cause.severity)
        if not _gain(found[kind]):
            found[kind] = replace(found[kind], severity=least)
        if cause.level == found[kind].level:
            explained[kind] = least

    def order(finding: Finding) -> tuple[float, bool, float]:
        rank = explained.get(finding.type, finding.severity)
        return -rank, finding.type in explained, -_gain(finding)

    return tuple(sorted(found.values(), key=order))


def _gain(finding: Finding) -> float:
    return finding.replayed_gain or finding.gain_upper_bound or 0.0
