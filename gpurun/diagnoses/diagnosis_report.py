"""The document of a diagnosis: figures, findings, and what would say more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.ranked_findings import diagnose
from gpurun.records.diagnosis import AbsentSource, DiagnosisReport
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
