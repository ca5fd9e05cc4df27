"""Loss curves of the launches of two commits: the one rule, for sides of equally seeded launches.

Compared are every point of the curves, their quarters, and the whole: the distance of the sides'
means. The floor is the largest distance of two launches of one side, at this point or before it:
where rounding is multiplied, repeats come apart from step to step. A commit claims no other
rounding, so a side that repeats itself exactly is compared to about ten times that of float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from gpurun.records.bench.benchmark import LossCurve
from gpurun.same.measured_distance import Measured, measure
from gpurun.same.named_distance import REPEATS, Distance, Floor, Kind, Name
from gpurun.same.sameness_table import PARTS, SMALLEST
from gpurun.stats.descriptive import mean
from gpurun.stats.loss_curve_points import blocks

Row = tuple[tuple[float, ...], tuple[float, ...]]
"""One value a launch, of the baseline and of the current side."""


@dataclass(frozen=True)
class SideDistance:
    """How far the loss curves of two sides are apart.

    `differs`: a scaled distance is above 1; None if none is and repeats are too far apart to tell.
    `from_step`: the first point that is, counted from 1; None where only means show it. `size`,
    `spread`: fractions of the loss in the quarter where the sides, or the launches of one side, are
    furthest apart.
    """

    differs: bool | None
    from_step: int | None
    size: float
    spread: float


def compare_sides(
    baseline: Sequence[LossCurve], current: Sequence[LossCurve]
) -> SideDistance | None:
    """Compare the curves as far as all go; None where they share no point."""
    steps, rows = _points(baseline, current)
    if not rows:
        return None
    size = max(1, math.ceil(len(rows) / PARTS))
    quarters = [_mean_row(rows[i : i + size]) for i in range(0, len(rows), size)]
    pointwise, by_quarter = _measured("step", rows), _measured("quarter", quarters)
    table = [*pointwise, *by_quarter, *_measured("whole", [_mean_row(rows)])]
    apart = zip(steps, pointwise, strict=True)
    told = all(m.compared for m in by_quarter) or None
    return SideDistance(
        differs=any(m.fails for m in table) or (told and False),
        from_step=next((step for step, m in apart if m.fails), None),
        size=max(m.distance.size for m in by_quarter),
        spread=max(m.floor.value for m in by_quarter if m.floor),
    )


def _points(
    baseline: Sequence[LossCurve], current: Sequence[LossCurve]
) -> tuple[list[int], list[Row]]:
    """The first step of each point that every launch shows, and their values."""
    steps, rows = [], []
    columns = zip(*(curve.points for curve in (*baseline, *current)), strict=False)
    for (start, _), column in zip(blocks(1 << 62), columns, strict=False):
        seen = tuple(x for x in column if x is not None)
        if len(seen) == len(column):
            steps.append(start + 1)
            rows.append((seen[: len(baseline)], seen[len(baseline) :]))
    return steps, rows


def _mean_row(rows: Sequence[Row]) -> Row:
    def means(side: int) -> tuple[float, ...]:
        return tuple(map(mean, zip(*(row[side] for row in rows), strict=True)))

    return means(0), means(1)


def _measured(what: str, rows: Sequence[Row]) -> list[Measured]:
    """Of each row: the sides' relative distance beside the largest one within a side so far."""
    levels = [abs(mean(one)) for one, _ in rows]
    least = SMALLEST * max(levels)
    found, floor = [], 0.0
    for number, ((one, two), level) in enumerate(zip(rows, levels, strict=True)):
        scale = max(level, least) or 1.0
        spreads = (abs(a - b) / scale for side in (one, two) for a, b in combinations(side, 2))
        floor = max(floor, *spreads, 0.0)
        apart = Distance(abs(mean(two) - mean(one)) / scale, "")
        name = Name(Kind.SIDES, f"{what} {number}")
        found.append(measure(name, apart, Floor(floor, REPEATS)))
    return found
