"""Loss curves of the launches of two commits: the one rule, for sides of equally seeded launches.

Compared are every point of the curves, their quarters, and the whole: the distance of the sides'
means. The floor is the largest distance of two launches of one side, at this point or before it:
where rounding is multiplied, repeats come apart from step to step. A commit claims no other
rounding, so a side that repeats itself exactly is compared to about ten times that of float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations

from gpurun.records.bench.benchmark import LossCurve
from gpurun.same.curve_distances import PARTS, SMALLEST
from gpurun.same.floors import REPEATS, Floor
from gpurun.same.named_distance import Distance, Kind
from gpurun.same.sameness_table import TABLE, scaled
from gpurun.stats.loss_curve_points import blocks

Row = tuple[tuple[float, ...], tuple[float, ...]]
"""One value a launch, of the baseline and of the current side."""


@dataclass(frozen=True)
class SideDistance:
    """How far the loss curves of two sides are apart.

    `differs`: a scaled distance is above 1. `from_step`: the first point that is, counted from 1;
    None where only means show it. `size`, `spread`: fractions of the loss in the quarter where the
    sides, or the launches of one side, are furthest apart.
    """

    differs: bool
    from_step: int | None
    size: float
    spread: float


def compare_sides(
    baseline: Sequence[LossCurve], current: Sequence[LossCurve]
) -> SideDistance | None:
    """Compare the curves as far as all go; None where they share no point."""
    points = list(_points(baseline, current))
    if not points:
        return None
    rows = [row for _, row in points]
    size = max(1, math.ceil(len(rows) / PARTS))
    quarters = [_mean_row(rows[i : i + size]) for i in range(0, len(rows), size)]
    pointwise, by_quarter, whole = (_judged(x) for x in (rows, quarters, [_mean_row(rows)]))
    first = next((step for (step, _), one in zip(points, pointwise, strict=True) if one[2]), None)
    return SideDistance(
        differs=any(off for *_, off in (*pointwise, *by_quarter, *whole)),
        from_step=first,
        size=max(apart for apart, _, _ in by_quarter),
        spread=max(floor for _, floor, _ in by_quarter),
    )


def _points(
    baseline: Sequence[LossCurve], current: Sequence[LossCurve]
) -> Iterator[tuple[int, Row]]:
    """The first step of each point that every launch shows, and their values."""
    columns = zip(*(curve.points for curve in (*baseline, *current)), strict=False)
    for (start, _), column in zip(blocks(1 << 62), columns, strict=False):
        seen = tuple(x for x in column if x is not None)
        if len(seen) == len(column):
            yield start + 1, (seen[: len(baseline)], seen[len(baseline) :])


def _mean_row(rows: Sequence[Row]) -> Row:
    def means(side: int) -> tuple[float, ...]:
        columns = zip(*(row[side] for row in rows), strict=True)
        return tuple(math.fsum(column) / len(rows) for column in columns)

    return means(0), means(1)


def _judged(rows: Sequence[Row]) -> list[tuple[float, float, bool]]:
    """Of each row: the sides' relative distance, its floor, and whether it is too large."""
    levels = [abs(_mean(one)) for one, _ in rows]
    least = SMALLEST * max(levels)
    scales = [max(level, least) or 1.0 for level in levels]
    spreads = (
        max((abs(a - b) for side in row for a, b in combinations(side, 2)), default=0.0) / scale
        for row, scale in zip(rows, scales, strict=True)
    )
    found = []
    for (one, two), scale, floor in zip(rows, scales, accumulate(spreads, max), strict=True):
        apart = abs(_mean(two) - _mean(one)) / scale
        bound = TABLE[Kind.SIDES].bound(Distance(apart, ""), Floor(floor, REPEATS), drawn=False)
        compared = floor <= TABLE[Kind.SIDES].ceiling
        found.append((apart, floor, compared and scaled(Distance(apart, ""), bound) > 1))
    return found


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
