"""Do the launches of two commits train alike? Their loss curves by the one rule.

All launches have the same seed, so launches of equal commits differ by chance only. Causes are the
order of parallel sums and unseeded random numbers; deterministic scripts do not differ at all.

Compared are every point of the curves, their quarters, and the whole: the distance of the sides'
means. The floor is the largest distance of two launches of one side, at this point or before it:
where rounding is multiplied, repeats come apart from step to step. A commit claims no other
rounding, so a side that repeats itself exactly is compared to about ten times that of float32.
`scripts/simulate_training.py` has the error rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from gpurun.formatting.number_text import count
from gpurun.records.bench.benchmark import LossCurve
from gpurun.records.bench.comparison import TrainingComparison
from gpurun.same.measured_distance import Measured, measure
from gpurun.same.named_distance import REPEATS, Distance, Floor, Kind, Name
from gpurun.same.sameness_table import (
    FEW_NONFINITE,
    FEW_SIDES,
    NOT_BY_CHANCE,
    PARTS,
    SMALLEST,
)
from gpurun.stats.descriptive import chance_of_more, mean
from gpurun.stats.loss_curve_points import blocks, steps_below

HONEST = "one more random number, or other rounding, also causes this"

Curves = Sequence[LossCurve | None]
Row = tuple[tuple[float, ...], tuple[float, ...]]
"""One value a launch, of the baseline and of the current side."""


def compare_training(baseline: Curves, current: Curves) -> TrainingComparison:
    """Compare the curves of both sides' launches; None stands for a launch without a loss."""
    counts = (len(baseline), len(current))
    mine, theirs = _seen(baseline), _seen(current)

    def untold(why: str) -> TrainingComparison:
        return TrainingComparison(None, counts, f"the training was not compared: {why}")

    if not mine and not theirs:
        return untold("no loss was seen" if any(counts) else "no pair of launches was completed")
    if (len(mine), len(theirs)) != counts:
        return untold(
            f"a loss was seen in {len(mine)} of {count(counts[0], 'launch')} of the baseline "
            f"and in {len(theirs)} of {counts[1]} of the current side"
        )
    lost = _nonfinite(mine, theirs)
    if lost is not None and lost.differs:
        return lost
    if min(counts) < FEW_SIDES and not (_repeat(mine) and _repeat(theirs)):
        told = f"only {count(min(counts), 'launch')} of a side, {FEW_SIDES} are needed"
        return untold(f"{told}; {lost.told}" if lost is not None else told)
    return _by_curves(mine, theirs, lost)


def loses_its_loss(baseline: Curves, current: Curves) -> bool:
    """True if the current loss is proven not finite where the baseline's is: a regression.

    The part of `compare_training` that is cheap enough to be asked after every pair.
    """
    lost = None if None in (*baseline, *current) else _nonfinite(_seen(baseline), _seen(current))
    return lost is not None and lost.nonfinite_from_step is not None


def _seen(curves: Curves) -> list[LossCurve]:
    return [curve for curve in curves if curve is not None]


def _nonfinite(
    baseline: Sequence[LossCurve], current: Sequence[LossCurve]
) -> TrainingComparison | None:
    """Losses that are NaN or infinite on the two sides; None if all are finite.

    They differ if one side has more of them than chance deals out. A curve that ended before the
    last step at which one ceased to be finite does not count: in launches that take turns it may be
    shorter, and says nothing of what follows.
    """
    ends = [c.nonfinite_step for c in (*baseline, *current) if c.nonfinite_step]
    if not ends:
        return None
    sides = [
        [c for c in side if c.nonfinite_step or steps_below(len(c.points)) > max(ends)]
        for side in (baseline, current)
    ]
    bad = (
        sum(bool(c.nonfinite_step) for c in sides[0]),
        sum(bool(c.nonfinite_step) for c in sides[1]),
    )
    counts, step = (len(sides[0]), len(sides[1])), min(ends)
    all_of, proven = (len(baseline), len(current)), min(counts) >= FEW_NONFINITE or None
    if bad == (0, counts[1]):
        told = f"the loss is not finite from step {step} on; the baseline's is finite"
        lost = step if proven else None
        return TrainingComparison(proven, all_of, told, step, nonfinite_from_step=lost)
    if bad == (counts[0], 0):
        told = f"the training differs: the baseline's loss is not finite from step {step} on"
        return TrainingComparison(proven, all_of, f"{told}; the current one's is finite", step)
    told = (
        f"the loss is not finite in {bad[0]} of {count(counts[0], 'launch')} of the "
        f"baseline and in {bad[1]} of {counts[1]} of the current side"
    )
    ours, theirs = zip(bad, counts, strict=True)
    if min(chance_of_more(ours, theirs), chance_of_more(theirs, ours)) < NOT_BY_CHANCE:
        return TrainingComparison(True, all_of, f"the training differs: {told}", step)
    return TrainingComparison(None, all_of, told, step)


def _by_curves(
    baseline: Sequence[LossCurve], current: Sequence[LossCurve], lost: TrainingComparison | None
) -> TrainingComparison:
    """By the curves as far as all go."""
    counts = (len(baseline), len(current))
    also = "" if lost is None else f"; {lost.told}"
    steps, rows = _points(baseline, current)
    if not rows:
        return TrainingComparison(None, counts, f"the training was not compared{also}")
    width = max(1, math.ceil(len(rows) / PARTS))
    quarters = [_mean_row(rows[i : i + width]) for i in range(0, len(rows), width)]
    pointwise, by_quarter = _measured("step", rows), _measured("quarter", quarters)
    table = [*pointwise, *by_quarter, *_measured("whole", [_mean_row(rows)])]
    size = max(m.distance.size for m in by_quarter)
    spread = max(m.floor.value for m in by_quarter if m.floor)
    repeats = f"repeats of one side: {_percent(spread)}" if spread else "repeats are equal"
    if any(m.fails for m in table):
        first = next((s for s, m in zip(steps, pointwise, strict=True) if m.fails), None)
        where = "" if first is None else f" from step {first} on"
        told = (
            f"the training differs: the loss is not the baseline's{where}, by up to "
            f"{_percent(size)} ({repeats}); {HONEST}{also}"
        )
        return TrainingComparison(True, counts, told, first, size, spread)
    if not all(m.compared for m in by_quarter):
        told = f"the training was not compared: repeats of one side differ by {_percent(spread)}"
        return TrainingComparison(None, counts, f"{told}{also}", None, size, spread)
    told = f"no difference in training was seen in {counts[0]} and {counts[1]} loss curves"
    # Launches that end in NaN now and then are no ground for saying that all is well.
    same = len({curve.nonfinite_step for curve in (*baseline, *current)}) == 1
    differs = None if lost is not None and not same else False
    return TrainingComparison(differs, counts, f"{told} ({repeats}){also}", None, size, spread)


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


def _repeat(side: Sequence[LossCurve]) -> bool:
    """True if at least two launches have equal losses as far as all go."""
    points = zip(*(curve.points for curve in side), strict=False)
    ends = {curve.nonfinite_step for curve in side}
    return len(side) > 1 and len(ends) == 1 and all(len(set(each)) == 1 for each in points)


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
