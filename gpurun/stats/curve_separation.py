"""Are two groups of loss curves further apart than chance makes them?

If both sides train alike, it is chance which launches belong to which side. So the true split of
the launches has to separate the curves more than every other split of them does, whatever the noise
is. Student's t test is a second condition, which makes false answers rarer for ordinary noise.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import combinations

from gpurun.records.bench.benchmark import LossCurve
from gpurun.stats.loss_curve_points import blocks
from gpurun.stats.loss_deviation import PARTS, SMALLEST
from gpurun.stats.student_t import t_quantile

ERROR = 0.01
"""The level of the t test, over all points of the curve."""
ROUNDING = 2e-7
"""Smallest spread that is believed, as a fraction of the loss: float32 has steps of half of it."""
MOST_SPLITS = 999
"""Where there are more, so many are drawn."""


class CurveTable:
    """What is compared, a row each: every point of the curves, the quarters and the whole of them.

    A row has one value a launch, the first `first` of them the baseline's. Points beyond the
    shortest curve, or not seen in every launch, are left out.
    """

    def __init__(self, curves: Sequence[LossCurve], first: int) -> None:
        self._first, self._count = first, len(curves)
        length = min(len(curve.points) for curve in curves)
        columns = zip(*(curve.points[:length] for curve in curves), strict=True)
        points = [
            (start + 1, [x for x in row if x is not None])
            for row, (start, _) in zip(columns, blocks(1 << 62), strict=False)
            if None not in row
        ]
        self._steps = [step for step, _ in points]
        rows = [row for _, row in points]
        size = max(1, math.ceil(len(rows) / PARTS))
        parts = [rows[i : i + size] for i in range(0, len(rows), size)]
        self.values = rows + [_means(part) for part in (*parts, rows)] if rows else []
        levels = [abs(math.fsum(row)) / len(row) for row in self.values]
        least = SMALLEST * max(levels, default=0.0)
        self._floors = [ROUNDING * (max(level, least) or 1.0) for level in levels]
        error = ERROR / (2 * max(1, len(self.values)))
        self._bound = t_quantile(self._count - 2, 1 - error)

    def differs(self) -> bool:
        """True if the true split separates the curves enough, and more than every other split."""
        own = self._separation(range(self._first))
        return own[0] > 0 and all(self._separation(s) < own for s in self._other_splits())

    def first_step(self) -> int | None:
        """The first point at which the sides are apart; None where only means show it."""
        found = zip(self._steps, self._each(range(self._first)), strict=False)
        return next((step for step, t in found if t > self._bound), None)

    def _separation(self, chosen: Sequence[int]) -> tuple[int, float]:
        """The number of rows that pass the test, and the largest t."""
        found = list(self._each(chosen))
        return sum(t > self._bound for t in found), max(found)

    def _each(self, chosen: Sequence[int]) -> Iterator[float]:
        """Student's t of each row between the chosen launches and the others."""
        inside = set(chosen)
        others = [i for i in range(self._count) if i not in inside]
        share = math.sqrt(1 / len(chosen) + 1 / len(others))
        for row, floor in zip(self.values, self._floors, strict=True):
            one, two = [row[i] for i in chosen], [row[i] for i in others]
            mean, other = math.fsum(one) / len(one), math.fsum(two) / len(two)
            squares = sum((x - mean) ** 2 for x in one) + sum((x - other) ** 2 for x in two)
            spread = max(math.sqrt(squares / (self._count - 2)), floor)
            yield abs(mean - other) / (spread * share)

    def _other_splits(self) -> Iterator[tuple[int, ...]]:
        """Every other way to split the launches into two such groups, or many of them."""
        count, first = self._count, self._first
        halves = 2 * first == count  # then a split and its complement are the same
        everything = math.comb(count, first) // (2 if halves else 1)
        if everything <= MOST_SPLITS:
            found: Iterator[tuple[int, ...]] = combinations(range(count), first)
            yield from (s for s in found if s != tuple(range(first)) and (not halves or 0 in s))
            return
        draw, same = random.Random(0), (tuple(range(first)), tuple(range(first, count)))
        drawn = 0
        while drawn < MOST_SPLITS:
            split = tuple(sorted(draw.sample(range(count), first)))
            if split not in same:
                drawn += 1
                yield split


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
