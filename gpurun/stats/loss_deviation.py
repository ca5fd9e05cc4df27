"""Loss curves against each other: how far apart, and how far may they be by chance?

A curve is compared in a few parts, each by its mean, with the baseline trial of the same seed. Two
measurements show the effect of chance: the scatter of the difference of two curves from step to
step, and the distance between the baseline's own repeats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, zip_longest
from typing import Protocol, TypeVar

LOSS_TOLERANCE = 0.02
"""A loss curve may always deviate this much (fraction), whatever the noise."""
PARTS = 4
"""Parts that a curve is compared in."""
SIGMAS = 3.5
"""Deviations of chance that are tolerated: with four parts, one in 500 goes further."""
SMALLEST = 0.05
"""Deviations are fractions of a part's mean, or of this much of the curve's highest part."""
TIMES_ROUNDING = 2.0
"""A change of rounding may move a curve this many times as far as rounding alone moves it."""
MOST_BY_ROUNDING = 0.15
"""But no further than this. Rounding that moves a curve further by itself excuses nothing."""
FAR_ENOUGH = 0.8
"""A curve tells of others if it goes this part of their length."""
REPEATS = 3
"""Fewer repeats than this tell nothing of the spread between them."""


class SeededCurve(Protocol):
    """The losses of a training by step, and the seed that it began with."""

    @property
    def seed(self) -> int:
        """Curves of one seed are compared with each other first."""

    @property
    def losses(self) -> Sequence[float]:
        """NaN where no loss was seen, infinity where it was not finite."""


Curve = TypeVar("Curve", bound=SeededCurve)


@dataclass(frozen=True)
class PartDifference:
    """One part of two curves: the signed relative difference and its standard error."""

    relative: float
    error: float


@dataclass(frozen=True)
class Deviation:
    """The part of the curve that sticks out most: by how much, and how much is explained.

    `noise`: by chance, or by rounding where a curve shows what that does. `rounding`: by rounding.
    """

    size: float
    noise: float
    rounding: float = 0.0

    @property
    def bound(self) -> float:
        """The largest tolerated deviation."""
        return max(LOSS_TOLERANCE, self.noise)


def grows(apart: Deviation) -> bool:
    """True if rounding alone moves a curve further than is tolerated in any case."""
    return apart.rounding > LOSS_TOLERANCE


def deviation(
    baselines: Sequence[SeededCurve],
    candidates: Sequence[SeededCurve],
    rounded: Sequence[SeededCurve] = (),
) -> Deviation | None:
    """Distance of the candidates' curves from the baseline's, over all pairs; None without curves.

    Many pairs separate a bias that they share from chance better than one pair. `rounded`: curves
    that rounding alone sets apart from the baseline's longest one of their seed.
    """
    pairs, moved = [], []
    for candidate in candidates:
        partners = _partners(baselines, candidate.seed)
        found = [
            (p, min(len(b.losses), len(candidate.losses)))
            for b in partners
            if (p := differences(b.losses, candidate.losses))
        ]
        if found:
            nearest, steps = min(found, key=lambda one: max(abs(d.relative) for d in one[0]))
            pairs.append(nearest)
            moved.append(_moved_by_rounding(baselines, rounded, steps))
    if not pairs:
        return None
    parts = min(map(len, pairs))
    spread = repeat_spread(baselines, parts)
    worst: Deviation | None = None
    for part in range(parts):
        mine = [p[part] for p in pairs]
        size = abs(math.fsum(d.relative for d in mine)) / len(mine)
        error = math.sqrt(math.fsum(d.error**2 for d in mine)) / len(mine)
        chance = SIGMAS * max(error, spread[part] / math.sqrt(len(mine)))
        excused = math.fsum(by[part] for by in moved) / len(moved)
        rounding = TIMES_ROUNDING * excused
        here = Deviation(size, max(chance, rounding), rounding)
        if worst is None or here.size / here.bound > worst.size / worst.bound:
            worst = here
    return worst


def compared_steps(baselines: Sequence[SeededCurve], candidates: Sequence[SeededCurve]) -> int:
    """Steps that each candidate's curve shares with the longest of the baseline that it has."""
    reach = []
    for one in candidates:
        partners = [b for b in baselines if b.seed == one.seed] or baselines
        reach.append(min(len(one.losses), max((len(b.losses) for b in partners), default=0)))
    return min(reach, default=0)


def goes_as_far(rounded: SeededCurve, baselines: Sequence[SeededCurve], steps: int) -> bool:
    """True if a curve under rounding alone tells of the first so many steps."""
    own = longest(baselines, rounded.seed)
    return own is not None and min(len(own.losses), len(rounded.losses)) >= FAR_ENOUGH * steps


def longest(curves: Sequence[Curve], seed: int) -> Curve | None:
    """The curve of this seed with most steps; None if there is none."""
    return max((c for c in curves if c.seed == seed), key=lambda c: len(c.losses), default=None)


def _moved_by_rounding(
    baselines: Sequence[SeededCurve], rounded: Sequence[SeededCurve], steps: int
) -> list[float]:
    """By part: how far rounding alone moves the first so many steps of the baseline's curve.

    As far as the furthest of the draws, and nowhere if one of them goes too far.
    """
    moved = [0.0] * PARTS
    for draw in rounded:
        own = longest(baselines, draw.seed)
        if own is None or not goes_as_far(draw, baselines, steps):
            continue
        parts = [abs(d.relative) for d in differences(own.losses[:steps], draw.losses[:steps])]
        if max(parts, default=1.0) > MOST_BY_ROUNDING:
            return [0.0] * PARTS
        most = MOST_BY_ROUNDING / TIMES_ROUNDING
        moved = [max(a, min(b, most)) for a, b in zip_longest(moved, parts, fillvalue=0.0)]
    return moved


def _partners(baselines: Sequence[SeededCurve], seed: int) -> Sequence[SeededCurve]:
    """The baseline's curves to compare with: those of this seed, all where there is none.

    Where those are alike to the last bit, nothing is left to chance: then the longest alone. A
    shorter one would say nothing of later steps.
    """
    same = [b for b in baselines if b.seed == seed]
    if len(same) > 1 and all(_alike(a, b) for a, b in combinations(same, 2)):
        return [max(same, key=lambda curve: len(curve.losses))]
    return same or baselines


def _alike(one: SeededCurve, other: SeededCurve) -> bool:
    both = zip(one.losses, other.losses, strict=False)
    return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in both)


def repeat_spread(baselines: Sequence[SeededCurve], parts: int) -> list[float]:
    """By part: the deviation between two repeats of the baseline that chance makes."""
    spread = [0.0] * parts
    alike = [(a, b) for a, b in combinations(baselines, 2) if a.seed == b.seed]
    other = [(a, b) for a, b in combinations(baselines, 2) if a.seed != b.seed]
    for pairs in (alike, other if len({b.seed for b in baselines}) >= REPEATS else []):
        found = [d for a, b in pairs if len(d := differences(a.losses, b.losses)) >= parts]
        if found:
            for part in range(parts):
                square = math.fsum(d[part].relative ** 2 for d in found) / len(found)
                spread[part] = max(spread[part], math.sqrt(square))
    return spread


def differences(reference: Sequence[float], other: Sequence[float]) -> list[PartDifference]:
    """By part, over the steps that both curves have."""
    both = [
        (a, b)
        for a, b in zip(reference, other, strict=False)
        if math.isfinite(a) and math.isfinite(b)
    ]
    if not both:
        return []
    size = max(1, math.ceil(len(both) / PARTS))
    parts = [both[i : i + size] for i in range(0, len(both), size)]
    means = [math.fsum(a for a, _ in part) / len(part) for part in parts]
    floor = SMALLEST * max(map(abs, means))
    return [
        _part([b - a for a, b in part], max(abs(mean), floor) or 1.0)
        for part, mean in zip(parts, means, strict=True)
    ]


def _part(apart: Sequence[float], scale: float) -> PartDifference:
    mean = math.fsum(apart) / len(apart)
    return PartDifference(mean / scale, standard_error(apart) / scale)


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean of a series whose neighbours may resemble each other."""
    count = len(values)
    if count < 3:
        return 0.0
    mean = math.fsum(values) / count
    square = math.fsum((x - mean) ** 2 for x in values)
    if square == 0:
        return 0.0
    likeness = math.fsum((x - mean) * (y - mean) for x, y in pairwise(values)) / square
    likeness = min(max(likeness, 0.0), 0.6)  # a trend is no noise
    independent = count * (1 - likeness) / (1 + likeness)
    return math.sqrt(square / (count - 1) / independent)
