"""Ranks that work unequally long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.loader_cause import innermost
from gpurun.records.finding import Finding, FindingType, Location
from gpurun.records.messages.profile_events import FunctionSamples

ADVICE = (
    "batches of like cost on all ranks: bucket by length, or deal out whole batches in turn",
    "look for work that only one rank does in a step: logging, saving, evaluation",
)


class LoadImbalance(Diagnosis):
    """One rank works longer in each step, and the others wait for it.

    Triggered by the slowest rank's work above 1.1 times the fastest's; without a timeline, in both
    halves of the measured steps, since a busy machine slows a rank for a while. A rank works until
    it arrives at a collective: the duration of a collective holds the wait for others and says
    nothing of the rank. Host profiles of both ranks tell the line in which the slowest one spends
    most of the time that the fastest does not. `gpurun --scale` has a finding of the same name,
    which compares the slowest rank with the mean of the ranks.
    """

    type: ClassVar[FindingType] = FindingType.LOAD_IMBALANCE
    sources: ClassVar[tuple[Source, ...]] = (Source.RANKS, Source.TIMELINE)
    thresholds: ClassVar[tuple[str, ...]] = ("imbalance",)

    def find(self, evidence: Evidence) -> Finding | None:
        """Find the slowest rank; the bound is work shared out evenly.

        Without a timeline there is none: the wait for other ranks hides in what the fast ones do.
        """
        work, source = _work_by_timeline(evidence), Source.TIMELINE
        if work is None:
            work, source = _work_by_steps(evidence), Source.STEPS
        if work is None or min(work) <= 0:
            return None
        slowest, mean = max(range(len(work)), key=work.__getitem__), sum(work) / len(work)
        fastest = work.index(min(work))
        ratio = work[slowest] / work[fastest]
        if source is Source.STEPS:
            halves = zip(*evidence.rank_work_ms, strict=True)
            ratio = min(half[slowest] / min(half) for half in halves)
        functions = evidence.rank_functions
        known = len(functions) == len(work)
        return self.finding(
            evidence,
            evidence.thresholds.severity("imbalance", ratio - 1),
            f"rank {slowest} works {percent(ratio - 1)} longer a step than the fastest rank, and "
            "the others wait for it",
            [
                figure("slowest_rank", slowest, source),
                figure("imbalance", ratio, source),
                figure("slowest_work_ms", work[slowest], source),
                figure("fastest_work_ms", work[fastest], source),
            ],
            ADVICE,
            location=_location(functions[slowest], functions[fastest]) if known else None,
            bound=work[slowest] / mean if source is Source.TIMELINE else None,
        )


def _location(slow: Sequence[FunctionSamples], fast: Sequence[FunctionSamples]) -> Location | None:
    """The line of the user's in which most of the slow rank's additional time passes."""
    by_place = {(f.file, f.function, f.phase): f for f in fast}
    more = []
    for function in slow:
        other = by_place.get((function.file, function.function, function.phase))
        if other is not None:
            function = replace(
                function,
                self_seconds=max(0.0, function.self_seconds - other.self_seconds),
                total_seconds=max(0.0, function.total_seconds - other.total_seconds),
            )
        more.append(function)
    found = innermost([function for function in more if function.total_seconds > 0])
    return None if found is None else Location(found.file, found.line, found.function)


def _work_by_timeline(evidence: Evidence) -> list[float] | None:
    """Milliseconds a step that each rank does not wait in a collective."""
    if len(evidence.rank_figures) < 2:
        return None
    work = []
    for figures in evidence.rank_figures:
        if figures.step_ms is None or figures.communication is None:
            return None
        work.append(figures.step_ms * (1 - figures.communication.exposed_share))
    return work


def _work_by_steps(evidence: Evidence) -> list[float] | None:
    """Milliseconds of the parts of a step in which no gradients are exchanged."""
    ranks = evidence.rank_work_ms
    if len(ranks) < 2 or not all(len(halves) == 2 and min(halves) > 0 for halves in ranks):
        return None
    return [sum(halves) / 2 for halves in ranks]
