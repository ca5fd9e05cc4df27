"""The training waits for its data."""

from __future__ import annotations

from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, gain_without_wait, location_of, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.loader_cause import Cause, cause_of_wait, loader_function
from gpurun.records.finding import EvidenceFigure, Finding, FindingType, Location
from gpurun.replay.what_ifs import Change

SENTENCES = {
    Cause.WORKERS: "too few worker processes prepare batches",
    Cause.COMPUTING: "the processor is busy preparing batches (which part of it: not measured)",
    Cause.IDLE: "the loader is slow and mostly idle: it sleeps or waits (for what: not measured)",
    Cause.SAMPLER: "the sampler takes long to choose samples, in the main process",
    Cause.CORES: "the model and the worker processes keep all cores busy",
    Cause.NOT_MEASURED: "the cause was not measured",
}
FASTER = (
    "store samples decoded and resized, or transform whole batches on the device",
    "use a faster decoder or transform (Pillow-SIMD, torchvision.transforms.v2, DALI)",
)
NO_WORKERS = "no worker process prepares batches while the model trains"
ADVICE = {
    Cause.WORKERS: (
        "load in worker processes: DataLoader(num_workers=..., persistent_workers=True), as many "
        "as a measurement finds best",
        "with workers: raise prefetch_factor where batches take unequally long",
    ),
    Cause.COMPUTING: (
        "load in worker processes: DataLoader(num_workers=...), as long as cores are free",
        *FASTER,
    ),
    Cause.CORES: FASTER,
    Cause.IDLE: (
        "read ahead in worker processes, or in more of them: their waits pass at the same time",
        "if it waits for storage: keep the data on a local disk or in memory, in few large files",
    ),
    Cause.SAMPLER: (
        "draw the indices of an epoch at once, with torch.multinomial or torch.randperm",
        "worker processes do not help: DataLoader asks the sampler in the main process",
    ),
    Cause.NOT_MEASURED: (
        "run the script under gpurun: it measures the loader, its workers and their use of the CPU",
        "where no worker processes load: DataLoader(num_workers=...)",
    ),
}
FIRST_GAP_SHARE = 0.02
"""Share of the step; a shorter pause before the first kernel hardly costs anything."""


class DataLoading(Diagnosis):
    """The step waits for the data loader.

    Replayed with batches that are ready when asked for. Without a replay, the bound is the step
    less its wait for data; an idle device for more than 5 ms before the first kernel of a step
    counts, too, where no source marks the loader. Workers, CPU use and the host profile tell the
    cause: no or too few workers, a processor that is busy preparing batches, no free core, a loader
    that is idle itself, or a slow sampler. Where they do not, no cause is named. Other programs on
    the cores hide the cause from CPU use, but not from the host profile.
    """

    type: ClassVar[FindingType] = FindingType.DATA_LOADING
    sources: ClassVar[tuple[Source, ...]] = (Source.STEPS, Source.CPU_USE, Source.HOST)
    thresholds: ClassVar[tuple[str, ...]] = ("first_kernel_gap_ms",)

    def find(self, evidence: Evidence) -> Finding | None:
        """The wait for data with its cause, and the line of the loader or the data set."""
        share = evidence.data_wait_share
        said = f"the training waits for data {percent(share)} of the step"
        severity = None
        gap = _first_gap(evidence)
        if gap is not None and share is None and evidence.replay is None:
            severity = evidence.thresholds.severity("first_kernel_gap_ms", gap)
            share = gap / evidence.step_ms if evidence.step_ms else None
            idles = f"the device idles {percent(share)} of the step before its first kernel"
            said = f"{idles}, as if it waited for data"
        cause = cause_of_wait(evidence, share or 0.0)
        alone = cause is Cause.WORKERS and evidence.workers == 0
        why = NO_WORKERS if alone else SENTENCES[cause]
        return self.finding(
            evidence,
            severity,
            f"{said}: {why}",
            [EvidenceFigure("cause", cause.value, "diagnosis"), *_figures(evidence, gap)],
            ADVICE[cause],
            location=_location(evidence),
            knob="loader_workers" if _workers_help(cause, evidence) else None,
            replayed=evidence.replayed_gain(Change.BATCHES),
            bound=gain_without_wait(share, evidence),
        )


def _first_gap(evidence: Evidence) -> float | None:
    gap = None if evidence.idle is None else evidence.idle.before_first_kernel_ms
    step = evidence.step_ms
    return gap if gap is not None and step and gap >= FIRST_GAP_SHARE * step else None


def _workers_help(cause: Cause, evidence: Evidence) -> bool:
    if cause is Cause.SAMPLER:
        return False
    return cause not in (Cause.COMPUTING, Cause.CORES) or _has_cores(evidence)


def _has_cores(evidence: Evidence) -> bool:
    used, cores = evidence.cores_used, evidence.cores_available
    return cores is None or cores - max(used or 0.0, evidence.workers or 0) >= 0.5


def _figures(evidence: Evidence, gap: float | None) -> list[EvidenceFigure | None]:
    split = evidence.split
    by_timeline = Source.TIMELINE in evidence.sources
    source = Source.TIMELINE if by_timeline else Source.STEPS
    return [
        figure("data_wait_share", evidence.data_wait_share, source),
        figure("data_wait_ms", None if split is None else split.data_wait_ms, Source.STEPS),
        figure("step_ms", evidence.step_ms, source if split is None else Source.STEPS),
        figure("idle_before_first_kernel_ms", gap, Source.TIMELINE),
        figure("workers", evidence.workers, Source.STEPS),
        figure("cores_used", evidence.cores_used, Source.CPU_USE),
        figure("cores_available", evidence.cores_available, Source.CPU_USE),
    ]


def _location(evidence: Evidence) -> Location | None:
    """The busiest line of the data set, else the line that builds the loader."""
    function = loader_function(evidence)
    if function is not None:
        return Location(function.file, function.line, function.function)
    return location_of(evidence.loaders[0].key) if evidence.loaders else None
