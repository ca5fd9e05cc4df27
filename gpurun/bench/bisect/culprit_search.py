"""`bench bisect GOOD..BAD`: which pair of commits to launch next, and when the culprit is known.

The search halves, as `git bisect` does, and the gate of `bench --compare` answers each question by
pairs of launches.

1. BAD against GOOD: a regression gives the drop; its half is the border of all later answers.
2. The middle of the commits that are left, against GOOD: fast if it is more likely than not below
   the border, slow if above. An undecided commit is left out, and its neighbour is asked.
3. The commit that is left, against its parent: only a regression by these pairs names a culprit.

A halving may err more than the gate does: true losses lie half a drop from the border, and a wrong
turn ends at a commit that step 3 does not confirm. The confirmation alone makes the claim, at the
gate's own levels, so these are not shared among all questions.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from gpurun.bench.trees.git import short
from gpurun.errors import ExitCode
from gpurun.pairs.gate import Gated, GatePlan, MetricResult, Verdict, judge
from gpurun.records.bench.bisection import BisectionReport
from gpurun.records.bench.metrics import Metric

SPEED = Metric.THROUGHPUT
CLAIM = GatePlan.up_to(32)
"""Of both claims (BAD is slower, the culprit is). Twice the pairs of a comparison: a search asks
more, and names a commit."""
HALVING_ERROR = 0.6
"""Of each answer of a halving, summed over all looks. It finds 98 to 100 % of drops of 5 % at 2 %
noise, in up to 81 pairs. With 0.4 it takes 94. With 1.0 it finds 96 % where neighbours correlate,
and its last look decides by chance: the last levels must stay below a half.
"""
HALVING = replace(CLAIM, regression_error=HALVING_ERROR, pass_error=HALVING_ERROR)


@dataclass(frozen=True)
class SearchPlan:
    """The limits of a search; `scripts/simulate_bisect.py` shows what they give.

    `smallest`: the smallest drop that counts, a fraction of throughput. `max_pairs`: of all
    questions together.
    """

    smallest: float = 0.025
    max_pairs: int = 200


class Outcome(enum.Enum):
    """How a search ended, or would end now: its verdict, and what to do next."""

    FOUND = ("found", "see git show {last}")
    NARROWED = ("narrowed", "make the others of these commits run, or take more steps (--steps)")
    NO_DROP = ("no_drop", "look for other changes: data, driver, packages, the machine")
    NOT_CONFIRMED = (
        "inconclusive",
        "{last} does not lose half of the drop against {before}: the drop came in several steps, "
        "or an answer was wrong",
    )
    UNDECIDED = ("inconclusive", "a quieter machine or more steps (--steps) may decide it")
    MORE = ("inconclusive", "the same command with more --max-pairs continues from here")


ENDS = {
    Verdict.MORE: Outcome.MORE,
    Verdict.PASS: Outcome.NO_DROP,
    Verdict.INCONCLUSIVE: Outcome.UNDECIDED,
}
CONFIRMED = {**ENDS, Verdict.PASS: Outcome.NOT_CONFIRMED, Verdict.REGRESSION: Outcome.FOUND}
MERGE = (
    "it is a merge; gpurun bench bisect $(git merge-base {last}^1 {last}^2)..{last}^2 searches the "
    "merged branch"
)


@dataclass(frozen=True)
class Measure:
    """Launch a pair of `commit` and `against`, which is the first one or the second."""

    commit: str
    against: str
    against_first: bool


@dataclass(frozen=True)
class Standing:
    """Where a search stands.

    `suspects`: commits that may have brought the drop, oldest first. `lost`: what BAD loses against
    GOOD. `own`: what the last suspect loses against the commit before the first one, None before
    they are compared. `more`: the next pair, None once the search has ended.
    """

    outcome: Outcome
    suspects: tuple[str, ...]
    lost: MetricResult
    own: MetricResult | None = None
    more: Measure | None = None


def next_action(found: BisectionReport, plan: SearchPlan) -> Standing:
    """The answer, or the answer so far with the next pair; by the pairs and skips alone."""
    commits = tuple(one.commit for one in found.line)
    low, high = 0, len(commits) - 1

    def asked(
        place: int, against: int, threshold: float, gate: GatePlan
    ) -> tuple[Verdict, MetricResult, Measure | None]:
        both = (commits[place], commits[against])
        own = [pair for pair in found.pairs if (pair.commit, pair.against) == both]
        figures = [(pair.throughput_of_against, pair.throughput_of_commit) for pair in own]
        turns = [pair.error for pair in own], [pair.loose for pair in own]
        answer = judge([Gated(SPEED, figures, threshold, *turns)], gate)
        more = None
        if answer.verdict is Verdict.MORE and len(found.pairs) < plan.max_pairs:
            more = Measure(*both, len(own) % 2 == 0)
        return answer.verdict, answer.metrics[0], more

    verdict, lost, more = asked(high, 0, plan.smallest, CLAIM)
    if verdict is not Verdict.REGRESSION or lost.slowdown is None:
        suspects = () if verdict is Verdict.PASS else commits[1:]
        return Standing(ENDS[verdict], suspects, lost, more=more)
    border = SPEED.slowdown(SPEED.log_of_slowdown(lost.slowdown) / 2)
    left_out = {n for n, one in enumerate(found.line) if one.skipped is not None}
    while left := [n for n in range(low + 1, high) if n not in left_out]:
        middle = min(left, key=lambda n: abs(2 * n - low - high))
        verdict, _, more = asked(middle, 0, border, replace(HALVING, irrelevant=border))
        if verdict is Verdict.MORE:
            return Standing(Outcome.MORE, commits[low + 1 : high + 1], lost, more=more)
        if verdict is Verdict.PASS:
            low = middle
        elif verdict is Verdict.REGRESSION:
            high = middle
        else:
            left_out.add(middle)
    verdict, own, more = asked(high, low, border, CLAIM)
    outcome = CONFIRMED[verdict]
    if outcome is Outcome.FOUND and high - low > 1:
        outcome = Outcome.NARROWED
    return Standing(outcome, commits[low + 1 : high + 1], lost, own, more)


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


def _todo(found: BisectionReport, standing: Standing) -> str:
    commits = [one.commit for one in found.line]
    suspects = standing.suspects or commits[1:2]
    before, last = commits.index(suspects[0]) - 1, commits.index(suspects[-1])
    names = {"before": short(commits[before]), "last": short(commits[last])}
    text = standing.outcome.value[1].format(**names)
    if standing.more is not None:
        return "the budget ended: the same command with more --budget continues from here"
    if standing.outcome is Outcome.FOUND and found.line[last].merge:
        text = MERGE.format(**names)
    if standing.outcome is Outcome.NOT_CONFIRMED:
        parts = ((commits[0], commits[before]), (commits[last], commits[-1]))
        ranges = [f"{short(good)}..{short(bad)}" for good, bad in parts if good != bad]
        text += bool(ranges) * f"; search for the rest of the drop in {' and '.join(ranges)}"
    return text
