"""Loss curves: the distance of two launches by parts, and do two commits train alike?

All launches of two commits have the same seed, so launches of equal commits differ by chance only.
Causes are the order of parallel sums and unseeded random numbers; deterministic scripts do not
differ at all. Compared are every point of the curves, their quarters, and the whole: the distance
of the sides' means. The floor is the largest distance of two launches of one side, at this point or
before it: where rounding is multiplied, repeats come apart from step to step. A commit claims no
other rounding, so a side that repeats itself exactly is compared to about ten times that of
float32. `scripts/simulate_training.py` has the error rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import TypeVar

from gpurun.formatting.number_text import count
from gpurun.records.bench.benchmark import LossCurve
from gpurun.records.bench.comparison import TrainingComparison
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.measured_distance import (
    REPEATS,
    Distance,
    Distances,
    Floor,
    Measured,
    Name,
    exact,
    measure,
)
from gpurun.same.sameness_table import (
    ENOUGH,
    FEW_SIDES,
    NOT_BY_CHANCE,
    PARTS,
    SMALLEST,
    TREND,
    Kind,
)
from gpurun.stats.descriptive import chance_of_more, mean, median
from gpurun.stats.loss_curve_points import blocks, steps_below


def curve_distances(ours: LaunchAudit, theirs: LaunchAudit, steps: int | None = None) -> Distances:
    """The whole of the first `steps` steps (None: of all that both have), and its parts.

    Values have a sign.
    """
    losses = ours.losses[:steps], theirs.losses[:steps]
    found = {f"part {n} of {PARTS}": apart for n, apart in enumerate(parts(*losses), 1)}
    for whole in parts(*losses, count=1):
        found[""] = whole
    return {
        Name(Kind.CURVE, place): Distance(apart, f"the loss deviates by {abs(apart):.1%}", error)
        for place, (apart, error) in found.items()
    }


Point = TypeVar("Point")


def parts(
    ours: Sequence[float], theirs: Sequence[float], count: int = PARTS
) -> list[tuple[float, float]]:
    """By part of the steps that both curves have: the relative difference, its standard error."""
    both = [
        (a, b) for a, b in zip(ours, theirs, strict=False) if math.isfinite(a) and math.isfinite(b)
    ]
    split = _split(both, count)
    scales = _scales([mean([b for _, b in part]) for part in split])
    apart = [[a - b for a, b in part] for part in split]
    return [(mean(x) / y, standard_error(x) / y) for x, y in zip(apart, scales, strict=True)]


def _split(points: Sequence[Point], count: int = PARTS) -> list[Sequence[Point]]:
    size = max(1, math.ceil(len(points) / count))
    return [points[i : i + size] for i in range(0, len(points), size)]


def _scales(means: Sequence[float]) -> list[float]:
    """What a deviation in each part is a fraction of."""
    least = SMALLEST * max(map(abs, means), default=0.0)
    return [max(abs(mean), least) or 1.0 for mean in means]


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean of a series whose neighbours may resemble each other."""
    count = len(values)
    if count < ENOUGH:
        return 0.0
    middle = mean(values)
    square = math.fsum((x - middle) ** 2 for x in values)
    if square == 0:
        return 0.0
    likeness = math.fsum((x - middle) * (y - middle) for x, y in pairwise(values)) / square
    likeness = min(max(likeness, 0.0), TREND)
    independent = count * (1 - likeness) / (1 + likeness)
    return math.sqrt(square / (count - 1) / independent)


def finite_distances(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """No NaN and no infinity where the other is finite, and a loss where it has one."""
    unseen = theirs.finite_losses and not ours.finite_losses
    sound, lost = not any(map(math.isinf, theirs.losses)), None
    for step, loss in enumerate(ours.losses):
        known = step < len(theirs.losses)
        if math.isinf(loss) and (not math.isinf(theirs.losses[step]) if known else sound):
            lost = lost or f"the loss is not finite at step {step + 1}"
    return {
        **exact(Kind.FINITE, "loss", lost),
        **exact(Kind.FINITE, "curve", "no loss was seen" if unseen else None),
    }


def runaway_distances(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """The losses of the last part over the largest loss of the other launch."""
    highest = max((abs(x) for x in theirs.losses if math.isfinite(x)), default=0.0)
    tail = [x for x in ours.losses[-max(1, len(ours.losses) // PARTS) :] if math.isfinite(x)]
    if not highest or not tail:
        return {}
    said = f"the loss diverges ({median(tail):.3g} after at most {highest:.3g})"
    return {Name(Kind.RUNAWAY): Distance(max(0.0, median(tail)) / highest, said)}


# -- two commits -----------------------------------------------------------------------------------

HONEST = "one more random number, or other rounding, also causes this"
Curves = Sequence[LossCurve | None]
SideValues = tuple[tuple[float, ...], tuple[float, ...]]
"""One value a launch, of the baseline and of the current side."""


def compare_training(baseline: Curves, current: Curves) -> TrainingComparison:
    """Compare the curves of both sides' launches; None stands for a launch without a loss."""
    counts, mine, theirs = (len(baseline), len(current)), _seen(baseline), _seen(current)
    lost = _nonfinite(baseline, current)
    if lost is not None and lost.differs:
        return lost
    if not mine and not theirs:
        why = "no loss was seen" if any(counts) else "no pair of launches was completed"
    elif (len(mine), len(theirs)) != counts:
        why = (
            f"a loss was seen in {len(mine)} of {count(counts[0], 'launch')} of the baseline "
            f"and in {len(theirs)} of {counts[1]} of the current side"
        )
    elif min(counts) < FEW_SIDES and not (_repeat(mine) and _repeat(theirs)):
        why = f"only {count(min(counts), 'launch')} of a side, {FEW_SIDES} are needed"
        why += f"; {lost.told}" if lost is not None else ""
    else:
        return _by_curves(mine, theirs, lost)
    return TrainingComparison(None, counts, f"the training was not compared: {why}")


def loses_its_loss(baseline: Curves, current: Curves) -> bool:
    """True if the current loss is proven not finite where the baseline's is: a regression.

    The part of `compare_training` that is cheap enough to be asked after every pair.
    """
    lost = _nonfinite(baseline, current)
    return lost is not None and lost.nonfinite_from_step is not None


def _seen(curves: Curves) -> list[LossCurve]:
    return [curve for curve in curves if curve is not None]


def _nonfinite(baseline: Curves, current: Curves) -> TrainingComparison | None:
    """Losses that are NaN or infinite on the two sides; None if all are finite, or one is unseen.

    They differ if one side has more of them than chance deals out. A curve that ended before the
    last step at which one ceased to be finite does not count: in launches that take turns it may be
    shorter, and says nothing of what follows.
    """
    ends = [c.nonfinite_step for c in _seen([*baseline, *current]) if c.nonfinite_step]
    if not ends or None in (*baseline, *current):
        return None
    (was, before), (now, after) = (_ended(_seen(side), max(ends)) for side in (baseline, current))
    step, proven, lost = min(ends), min(before, after) > 1 or None, None
    if not was and now == after:
        told = f"the loss is not finite from step {step} on; the baseline's is finite"
        lost = step if proven else None
    elif not now and was == before:
        told = f"the training differs: the baseline's loss is not finite from step {step} on"
        told += "; the current one's is finite"
    else:
        told = (
            f"the loss is not finite in {was} of {count(before, 'launch')} of the "
            f"baseline and in {now} of {after} of the current side"
        )
        sides = (was, before), (now, after)
        chance = min(chance_of_more(*sides), chance_of_more(*sides[::-1]))
        proven = chance < NOT_BY_CHANCE or None
        told = f"the training differs: {told}" if proven else told
    return TrainingComparison(
        proven, (len(baseline), len(current)), told, step, nonfinite_from_step=lost
    )


def _ended(side: Sequence[LossCurve], last: int) -> tuple[int, int]:
    """How many curves cease to be finite, of how many that do, or go beyond the step `last`."""
    bad = sum(bool(c.nonfinite_step) for c in side)
    return bad, bad + sum(not c.nonfinite_step and steps_below(len(c.points)) > last for c in side)


def _by_curves(
    baseline: Sequence[LossCurve], current: Sequence[LossCurve], lost: TrainingComparison | None
) -> TrainingComparison:
    """By the curves as far as all go."""
    counts = (len(baseline), len(current))
    also = "" if lost is None else f"; {lost.told}"
    steps, rows = _points(baseline, current)
    if not rows:
        return TrainingComparison(None, counts, f"the training was not compared{also}")
    pointwise = _measured("step", rows)
    by_quarter = _measured("quarter", [_mean_row(part) for part in _split(rows)])
    table = [*pointwise, *by_quarter, *_measured("whole", [_mean_row(rows)])]
    size = max(m.distance.size for m in by_quarter)
    spread = max(m.floor.value for m in by_quarter if m.floor)
    repeats = f"repeats of one side: {_percent(spread)}" if spread else "repeats are equal"
    first, differs = None, None
    if any(m.fails for m in table):
        first = next((s for s, m in zip(steps, pointwise, strict=True) if m.fails), None)
        where, differs = "" if first is None else f" from step {first} on", True
        told = f"the training differs: the loss is not the baseline's{where}, by up to "
        told += f"{_percent(size)} ({repeats}); {HONEST}"
    elif not all(m.compared for m in by_quarter):
        told = f"the training was not compared: repeats of one side differ by {_percent(spread)}"
    else:
        told = f"no difference in training was seen in {counts[0]} and {counts[1]} loss curves"
        told += f" ({repeats})"
        # Launches that end in NaN now and then are no ground for saying that all is well.
        same = len({curve.nonfinite_step for curve in (*baseline, *current)}) == 1
        differs = False if lost is None or same else None
    return TrainingComparison(differs, counts, f"{told}{also}", first, size, spread)


def _points(
    baseline: Sequence[LossCurve], current: Sequence[LossCurve]
) -> tuple[list[int], list[SideValues]]:
    """The first step of each point that every launch shows, and their values."""
    steps, rows = [], []
    columns = zip(*(curve.points for curve in (*baseline, *current)), strict=False)
    for (start, _), column in zip(blocks(1 << 62), columns, strict=False):
        seen = tuple(x for x in column if x is not None)
        if len(seen) == len(column):
            steps.append(start + 1)
            rows.append((seen[: len(baseline)], seen[len(baseline) :]))
    return steps, rows


def _mean_row(rows: Sequence[SideValues]) -> SideValues:
    one, two = (tuple(map(mean, zip(*side, strict=True))) for side in zip(*rows, strict=True))
    return one, two


def _measured(what: str, rows: Sequence[SideValues]) -> list[Measured]:
    """Of each row: the sides' relative distance beside the largest one within a side so far."""
    found, floor = [], 0.0
    scales = _scales([mean(one) for one, _ in rows])
    for number, ((one, two), scale) in enumerate(zip(rows, scales, strict=True)):
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
