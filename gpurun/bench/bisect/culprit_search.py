"""`bench bisect GOOD..BAD`: which pair of commits to launch next, and when the culprit is known.

Benchmarks are too noisy for one decision a commit. Halving a range of 64 takes six decisions, and
one wrong decision loses the culprit for good. Here the search makes no decision on the way. All
pairs so far give the probability of each commit by Bayes' rule (`posterior`). The next pair
measures the commit whose outcome is hardest to predict: as likely slower than GOOD as not. A commit
that becomes likely is compared with its parent. It is the culprit if two probabilities reach
`level`: by all pairs, and by its pairs with the parent alone. The second condition guards against
the assumption of the first: a range that slows down bit by bit has no culprit.

Two launches make a pair; they are run in turn (AB, BA) so that a drifting machine cancels. The log
of pairs in a `Bisection` is the whole state, and the next pair follows from it alone. So an
interrupted search continues from its file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpurun.bench.bisect.bisect_state import (
    Bisection,
    Confirm,
    Done,
    Measure,
    Outcome,
    Pair,
)
from gpurun.records.bench.bisection import SecondDrop, SuspectedCommits
from gpurun.stats.descriptive import median

if TYPE_CHECKING:
    from gpurun.stats.drop_posterior import Further, Posterior


@dataclass(frozen=True)
class _MeasurableCommit:
    """A commit that can be measured, with the skipped ones before it: a drop between its
    neighbour and itself came with any of these."""

    commits: tuple[str, ...]

    @property
    def commit(self) -> str:
        return self.commits[-1]


def next_action(state: Bisection) -> Measure | Confirm | Done:
    """The next action, or the answer. The same log always gives the same action."""
    places = _places(state)
    posterior = _posterior(state, places)
    probabilities = [float(p) for p in posterior.places]
    top = max(range(len(probabilities)), key=probabilities.__getitem__)
    none = top == len(places)
    commit = places[-1 if none else top].commit
    parent = state.good if none or top == 0 else places[top - 1].commit
    enough = len(_own_pairs(state, commit, parent)) >= state.plan.least_pairs
    sure = enough and probabilities[top] >= state.plan.level
    spent = len(state.pairs) >= state.plan.max_pairs
    if sure and none:
        return Done(Outcome.NOT_REPRODUCED, (), probabilities[top], *_cost(state, posterior))
    if sure and posterior.own(top + 1) >= state.plan.level:
        more = posterior.further(top + 1)
        check = None if spent else _check(state, more.probability, commit, parent)
        return check or _found(state, places, posterior, top, more)
    if spent:
        return _inconclusive(state, places, posterior)
    if none or probabilities[top] < state.plan.likely:
        return _measure(state, places[_even(probabilities)].commit, state.good)
    order = _measure(state, commit, parent).against_first
    return Confirm(commit, parent, order, probabilities[top])


def _places(state: Bisection) -> list[_MeasurableCommit]:
    places: list[_MeasurableCommit] = []
    run: list[str] = []
    skipped = set(state.skipped)
    for commit in state.commits:
        run.append(commit)
        if commit not in skipped:
            places.append(_MeasurableCommit(tuple(run)))
            run = []
    return places


def _posterior(state: Bisection, places: Sequence[_MeasurableCommit]) -> Posterior:
    from gpurun.stats.drop_posterior import Posterior, Reading  # numpy comes with it

    where = {state.good: 0, **{p.commit: i for i, p in enumerate(places, 1)}}
    readings = [
        Reading(where[p.commit], where[p.against], p.slowdown)
        for p in state.pairs
        if p.commit in where and p.against in where
    ]
    weights = [float(len(p.commits)) for p in places]
    return Posterior(weights, readings, -math.log1p(-state.plan.smallest))


def _even(probabilities: Sequence[float]) -> int:
    """The place that is as likely slower than GOOD as not: a pair with it tells most."""
    slower, best, index = 0.0, math.inf, 0
    for i, probability in enumerate(probabilities[:-1]):
        slower += probability
        if abs(slower - 0.5) < best:
            best, index = abs(slower - 0.5), i
    return index


def _own_pairs(state: Bisection, commit: str, against: str) -> list[Pair]:
    return [p for p in state.pairs if (p.commit, p.against) == (commit, against)]


def _measure(state: Bisection, commit: str, against: str) -> Measure:
    """A pair whose order balances earlier pairs of these commits, else reverses the last order."""
    own = [p.against_first for p in _own_pairs(state, commit, against)]
    balance = 2 * sum(own) - len(own)
    if balance:
        return Measure(commit, against, balance < 0)
    return Measure(commit, against, not (state.pairs and state.pairs[-1].against_first))


def _check(state: Bisection, another: float, commit: str, parent: str) -> Measure | None:
    """Where it is open whether the culprit accounts for all that BAD lost: one more pair."""
    low, high = state.plan.doubtful
    ends = (state.commits[-1], state.good)
    fewest = min((ends, (commit, parent)), key=lambda two: len(_own_pairs(state, *two)))
    open_yet = low < another < high and len(_own_pairs(state, *fewest)) < state.plan.most_pairs
    return _measure(state, *fewest) if open_yet else None


def _suspects(
    places: Sequence[_MeasurableCommit], probabilities: Sequence[float], enough: float
) -> tuple[SuspectedCommits, ...]:
    """The likeliest places, until together they reach `enough`."""
    found: list[SuspectedCommits] = []
    for probability, place in sorted(zip(probabilities, places, strict=True), key=_likeliest):
        if sum(s.probability for s in found) >= enough:
            break
        found.append(SuspectedCommits(place.commits, probability))
    return tuple(found)


def _likeliest(entry: tuple[float, _MeasurableCommit]) -> float:
    return -entry[0]


def _cost(state: Bisection, posterior: Posterior) -> tuple[int, float | None]:
    return len(state.pairs), posterior.noise if state.pairs else None


def _inconclusive(
    state: Bisection, places: Sequence[_MeasurableCommit], posterior: Posterior
) -> Done:
    *probabilities, none = (float(p) for p in posterior.places)
    suspects = _suspects(places, probabilities, state.plan.level * (1 - none))
    return Done(Outcome.INCONCLUSIVE, suspects, none, *_cost(state, posterior))


def _found(
    state: Bisection,
    places: Sequence[_MeasurableCommit],
    posterior: Posterior,
    top: int,
    more: Further,
) -> Done:
    another = None
    if more.probability > 0.5:
        suspects = _suspects(places, [float(p) for p in more.places], 0.9)
        another = SecondDrop(more.probability, suspects, -math.expm1(-more.size))
    ends = [p.slowdown for p in _own_pairs(state, state.commits[-1], state.good)]
    middle, low, high = (-math.expm1(-x) for x in posterior.jump(top + 1))
    return Done(
        Outcome.FOUND,
        (SuspectedCommits(places[top].commits, float(posterior.places[top])),),
        float(posterior.places[-1]),
        *_cost(state, posterior),
        slowdown=middle,
        slowdown_interval=(low, high),
        bad_slowdown=-math.expm1(-median(ends)) if ends else None,
        another=another,
    )
