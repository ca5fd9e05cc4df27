"""What a search has found: its document with the answer so far, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpurun.bench.bisect.culprit_search import Outcome, SearchPlan, Standing, next_action
from gpurun.bench.trees.git import short
from gpurun.errors import ExitCode
from gpurun.records.bench.bisection import BisectionReport

WORST_FIRST = ("interrupted", "failed", "found", "narrowed", "inconclusive", "no_drop")
MERGE = (
    "it is a merge; gpurun bench bisect $(git merge-base {last}^1 {last}^2)..{last}^2 searches the "
    "merged branch"
)


def answered(found: BisectionReport, plan: SearchPlan) -> BisectionReport:
    """The document with its answer, or the answer so far."""
    if not found.line:
        return found
    standing = next_action(found, plan)
    (verdict, _), own = standing.outcome.value, standing.own
    return replace(
        found,
        verdict=verdict,
        exit_code=int(ExitCode.OK if verdict == "found" else ExitCode.INCONCLUSIVE),
        culprit=standing.suspects[0] if verdict == "found" else None,
        suspects=standing.suspects,
        slowdown=None if own is None else own.slowdown,
        slowdown_interval=None if own is None else own.interval,
        range_slowdown=standing.lost.slowdown,
        range_slowdown_interval=standing.lost.interval,
        recommendation=_todo(found, standing),
    )


def worst_with_others(documents: Sequence[BisectionReport]) -> BisectionReport:
    """Several benchmarks as one document: that of the worst, which holds the others."""
    worst = min(documents, key=lambda one: WORST_FIRST.index(one.verdict))
    return replace(worst, others=tuple(one for one in documents if one is not worst))


def _todo(found: BisectionReport, standing: Standing) -> str:
    commits = [one.commit for one in found.line]
    last = commits.index(standing.suspects[-1]) if standing.suspects else 0
    text = standing.outcome.value[1].format(last=short(commits[last]))
    if standing.more is not None:
        return "the budget ended: the same command with more --budget continues from here"
    if standing.outcome is Outcome.FOUND and found.line[last].merge:
        text = MERGE.format(last=short(commits[last]))
    if standing.outcome is Outcome.NOT_CONFIRMED or standing.part:
        parts = ((commits[0], commits[last - 1]), (commits[last], commits[-1]))
        ranges = [f"{short(good)}..{short(bad)}" for good, bad in parts if good != bad]
        text += bool(ranges) * f"; search for the rest of the drop in {' and '.join(ranges)}"
    return text
