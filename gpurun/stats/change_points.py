"""Change points of a benchmark's history: since which commit is it faster or slower? And its drift.

Neighbouring records share the state of the machine: a test that takes them for independent finds
changes wherever it looks. Here a change counts once the evidence for it (`level_shifts.py`,
which knows autocorrelated noise and drift) is enough, averaged over all places where it might be,
so that a longer history must show more. Changes are added one or two at a time (two, so that
a regression that was soon mended is seen), moved to their best places, and dropped again if they do
not stand beside the others. A drift is a line beside the changes that were found; small losses
with every commit are one. `scripts/simulate_changepoints.py` shows how often both err.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from gpurun.stats.descriptive import median, t_quantile

if TYPE_CHECKING:
    from gpurun.stats.level_shifts import Array, Left, Places


@dataclass(frozen=True)
class Point:
    """One commit of a history: its positive values (such as samples/s of each launch).

    `at` is when it was measured, in seconds since any moment; None where that is not known.
    A commit without values was not measured and is left out.
    """

    commit: str
    values: tuple[float, ...]
    at: float | None = None


class Direction(enum.Enum):
    """The direction of a change."""

    IMPROVEMENT = "improvement"
    REGRESSION = "regression"


@dataclass(frozen=True)
class LevelChange:
    """A change of level that stays until the next one."""

    commit: str
    """The first commit on the new level, most likely."""
    earliest: str
    latest: str
    """It came with one of the commits from `earliest` to `latest`, with 90 % probability."""
    change: float
    """Relative change of the value, a fraction: -0.05 is 5 % less."""
    interval: tuple[float, float]
    """95 % interval of `change`, given the commit."""
    direction: Direction
    evidence: float
    """Natural logarithm of the Bayes factor for a change hereabouts, given the other changes."""


@dataclass(frozen=True)
class Drift:
    """A change that is spread over a whole history: a line beside the changes of level."""

    change: float
    """Relative change of the value from the first to the last point, a fraction."""
    interval: tuple[float, float]
    """95 % interval of `change`."""
    per_point: float
    """Relative change from one point to the next."""
    direction: Direction
    evidence: float
    """Natural logarithm of the Bayes factor for a line, given the changes of level beside it."""


@dataclass(frozen=True)
class ChangePlan:
    """The limits of what counts as a change."""

    evidence: float = math.log(10)
    """Logarithm of the Bayes factor that a change, a pair of them, or a drift needs."""
    least: int = 3
    """Fewest points before, between and after changes."""
    least_drift: int = 12
    """Fewest points of a history with a drift."""
    least_bump: int = 5
    """Fewest points between two changes that are found only together."""
    most_points: int = 400
    """In a longer history only the last so many are searched: time grows with their cube."""


def find_trend(
    points: Sequence[Point], higher_is_better: bool = True, plan: ChangePlan | None = None
) -> tuple[tuple[LevelChange, ...], Drift | None]:
    """The changes of a history, oldest first, and its drift; `points` in the order of commits.

    Raises ValueError for a value that is not a positive number.
    """
    plan = plan or ChangePlan()
    points = [p for p in points if p.values][-plan.most_points :]
    if any(not (math.isfinite(v) and v > 0) for p in points for v in p.values):
        raise ValueError("a history holds positive numbers")
    if len(points) < 2 * plan.least + 2:
        return (), None
    finder = _ChangeFinder(points, higher_is_better, plan)
    found = finder.find()
    return tuple(finder.described(found, place) for place in found), finder.drift(found)


def positions(points: Sequence[Point]) -> list[float]:
    """Places along the axis on which neighbours correlate.

    Machines change with time, code with commits: a gap counts by its length, between a quarter of
    the usual gap and four times that.
    """
    moments = [p.at for p in points if p.at is not None]
    gaps = [abs(b - a) for a, b in pairwise(moments)]
    if len(moments) < len(points) or not (usual := median(gaps)):
        return [float(i) for i in range(len(points))]
    places = [0.0]
    for gap in gaps:
        places.append(places[-1] + min(max(gap / usual, 0.25), 4.0))
    return places


class _ChangeFinder:
    """The search in one history; places are indices of points."""

    def __init__(self, points: Sequence[Point], higher_is_better: bool, plan: ChangePlan) -> None:
        from gpurun.stats.level_shifts import ShiftSeries  # numpy comes with it

        self.points, self.plan, self.higher_is_better = points, plan, higher_is_better
        values = [math.fsum(map(math.log, p.values)) / len(p.values) for p in points]
        self.series = ShiftSeries(values, positions(points), [len(p.values) for p in points])

    def find(self) -> Places:
        """Add changes while there is evidence for more; then drop what does not stand."""
        found: Places = ()
        while len(found) < len(self.points) // (2 * self.plan.least):
            more = self._next(found)
            if not more:
                break
            found = self._moved(_with(found, more))
        return self._kept(found)

    def drift(self, found: Places) -> Drift | None:
        """The line beside the changes `found`; None if there is not enough evidence for one."""
        import numpy as np

        if len(self.points) < self.plan.least_drift:
            return None
        line = self.series.line
        left = self.series.left(found, (*found, line))
        evidence = float(left.one(np.array([line]))[0])
        if evidence < self.plan.evidence:
            return None
        height, error = left.height(line)
        half = t_quantile(left.freedom, 0.975) * error
        return Drift(
            change=math.expm1(height),
            interval=(math.expm1(height - half), math.expm1(height + half)),
            per_point=math.expm1(height / (len(self.points) - 1)),
            direction=self._direction(height),
            evidence=evidence,
        )

    def _next(self, found: Places) -> Places:
        """The likeliest further change or pair of changes, if the evidence is enough.

        What is an outlier depends on the changes, so all is judged again with those it led to.
        """
        evidence = -math.inf
        tried: Places = ()
        fitted: Places | None = None
        for _ in range(4):
            left = self.series.left(found, fitted)
            free = self._free(found)
            evidence, best = max(self._one(left, free), self._two(left, free))
            if fitted is not None and best == tried:
                break
            tried, fitted = best, _with(found, best)
        return tried if evidence >= self.plan.evidence else ()

    def _free(self, found: Places) -> list[int]:
        """Where a further change would leave enough points on both sides."""
        least, ends = self.plan.least, (0, *found, len(self.points))
        return [i for a, b in pairwise(ends) for i in range(a + least, b - least + 1)]

    def _one(self, left: Left, free: Sequence[int]) -> tuple[float, Places]:
        import numpy as np

        if not free:
            return -math.inf, ()
        evidence = left.one(np.array(free))
        return _log_mean(evidence), (free[int(evidence.argmax())],)

    def _two(self, left: Left, free: Sequence[int]) -> tuple[float, Places]:
        import numpy as np

        from gpurun.stats.level_shifts import LONGEST_BUMP

        at = np.array(free, dtype=np.int64)
        apart = at - at[:, None]
        first, second = np.nonzero((apart >= self.plan.least_bump) & (apart <= LONGEST_BUMP))
        if not len(first):
            return -math.inf, ()
        evidence = left.two(at[first], at[second])
        best = int(evidence.argmax())
        return _log_mean(evidence), (int(at[first[best]]), int(at[second[best]]))

    def _moved(self, found: Places) -> Places:
        """Each change at its best place beside the others, until none moves."""
        for _ in range(3):
            before = found
            for place in before:
                others = tuple(p for p in found if p != place)
                left = self.series.left(others, found)
                _, best = self._one(left, self._around(others, place))
                found = _with(others, best)
            if found == before:
                break
        return found

    def _around(self, others: Places, place: int) -> list[int]:
        """The free places between the neighbours of a change."""
        low = max((p for p in others if p < place), default=0)
        high = min((p for p in others if p > place), default=len(self.points))
        return list(range(low + self.plan.least, high - self.plan.least + 1))

    def _kept(self, found: Places) -> Places:
        """Without the changes, weakest first, for which there is not enough evidence."""
        while found:
            evidence, weakest = min((self._evidence(found, place), place) for place in found)
            if evidence >= self.plan.evidence:
                break
            found = self._moved(tuple(p for p in found if p != weakest))
        return found

    def _evidence(self, found: Places, place: int) -> float:
        others = tuple(p for p in found if p != place)
        return self._one(self.series.left(others, found), self._around(others, place))[0]

    def described(self, found: Places, place: int) -> LevelChange:
        """One of the changes `found`."""
        import numpy as np

        others = tuple(p for p in found if p != place)
        left = self.series.left(others, found)
        around = self._around(others, place)
        evidence = left.one(np.array(around))
        below = np.cumsum(np.exp(evidence - evidence.max()))
        first, last = (int(np.searchsorted(below, q * below[-1])) for q in (0.05, 0.95))
        height, error = left.height(place)
        half = t_quantile(left.freedom, 0.975) * error
        return LevelChange(
            commit=self.points[place].commit,
            earliest=self.points[min(around[first], place)].commit,
            latest=self.points[max(around[last], place)].commit,
            change=math.expm1(height),
            interval=(math.expm1(height - half), math.expm1(height + half)),
            direction=self._direction(height),
            evidence=_log_mean(evidence),
        )

    def _direction(self, height: float) -> Direction:
        better = (height > 0) == self.higher_is_better
        return Direction.IMPROVEMENT if better else Direction.REGRESSION


def _with(found: Places, more: Places) -> Places:
    return tuple(sorted((*found, *more)))


def _log_mean(evidence: Array) -> float:
    import numpy as np

    top = evidence.max()
    return float(top + np.log(np.exp(evidence - top).mean()))
