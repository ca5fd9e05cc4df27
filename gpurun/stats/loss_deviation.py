"""Loss curves against each other: how far apart, and how far may they be by chance?

A curve is compared in a few parts, each by its mean, with the baseline trial of the same seed. Two
measurements show the effect of chance: the scatter of the difference of two curves from step to
step, and the distance between the baseline's own repeats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Protocol

LOSS_TOLERANCE = 0.02
"""A loss curve may always deviate this much (fraction), whatever the noise."""
PARTS = 4
"""Parts that a curve is compared in."""
SIGMAS = 3.5
"""Deviations of chance that are tolerated: with four parts, one in 500 goes further."""
SMALLEST = 0.05
"""Deviations are fractions of a part's mean, or of this much of the curve's highest part."""
FAR_ENOUGH = 0.8
"""A curve tells of another one if it is at least this part of its length."""
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


@dataclass(frozen=True)
class PartDifference:
    """One part of two curves: the signed relative difference and its standard error."""

    relative: float
    error: float


@dataclass(frozen=True)
class Deviation:
    """The part of the curve that sticks out most: by how much, and how much chance explains."""

    size: float
    noise: float

    @property
    def bound(self) -> float:
        """The largest tolerated deviation."""
        return max(LOSS_TOLERANCE, self.noise)


def deviation(
    baselines: Sequence[SeededCurve],
    candidates: Sequence[SeededCurve],
    repeats: Sequence[SeededCurve] = (),
) -> Deviation | None:
    """Distance of the candidates' curves from the baseline's, over all pairs; None without curves.

    Many pairs separate a bias that they share from chance better than one pair. `repeats`: further
    curves, which only chance sets apart from the baseline's longest one of their seed.
    """
    pairs = []
    for candidate in candidates:
        partners = [b for b in baselines if b.seed == candidate.seed] or list(baselines)
        partners = reaching(partners, candidate)
        found = [p for b in partners if (p := differences(b.losses, candidate.losses))]
        if found:
            pairs.append(min(found, key=lambda p: max(abs(d.relative) for d in p)))
    if not pairs:
        return None
    parts = min(map(len, pairs))
    spread = repeat_spread(baselines, parts, repeats)
    worst: Deviation | None = None
    for part in range(parts):
        mine = [p[part] for p in pairs]
        size = abs(math.fsum(d.relative for d in mine)) / len(mine)
        error = math.sqrt(math.fsum(d.error**2 for d in mine)) / len(mine)
        noise = SIGMAS * max(error, spread[part] / math.sqrt(len(mine)))
        here = Deviation(size, noise)
        if worst is None or here.size / here.bound > worst.size / worst.bound:
            worst = here
    return worst


def repeat_spread(
    baselines: Sequence[SeededCurve], parts: int, repeats: Sequence[SeededCurve] = ()
) -> list[float]:
    """By part: the deviation between two repeats of the baseline that chance makes."""
    spread = [0.0] * parts
    alike = [(a, b) for a, b in combinations(baselines, 2) if a.seed == b.seed]
    other = [(a, b) for a, b in combinations(baselines, 2) if a.seed != b.seed]
    further = [(b, r) for r in repeats if (b := longest(baselines, r.seed)) is not None]
    enough_seeds = len({b.seed for b in baselines}) >= REPEATS
    for pairs in (alike, other if enough_seeds else [], further):
        found = [d for a, b in pairs if len(d := differences(a.losses, b.losses)) >= parts]
        if found:
            for part in range(parts):
                square = math.fsum(d[part].relative ** 2 for d in found) / len(found)
                spread[part] = max(spread[part], math.sqrt(square))
    return spread


def reaching(curves: Sequence[SeededCurve], other: SeededCurve) -> list[SeededCurve]:
    """The curves that go about as far along another one as any of them does.

    Shorter ones agree with it more easily, and say nothing of its later steps.
    """
    reach = [min(len(curve.losses), len(other.losses)) for curve in curves]
    least = FAR_ENOUGH * max(reach, default=0)
    return [curve for curve, steps in zip(curves, reach, strict=True) if steps >= least]


def longest(curves: Sequence[SeededCurve], seed: int) -> SeededCurve | None:
    """The curve of this seed with most steps; None if there is none."""
    return max((c for c in curves if c.seed == seed), key=lambda c: len(c.losses), default=None)


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
