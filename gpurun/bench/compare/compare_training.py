"""Do both sides train alike? Compares their loss curves with the spread of one side's repeats.

All launches have the same seed, so launches of equal commits differ by chance only. Causes are the
order of parallel sums and unseeded random numbers; deterministic scripts do not differ at all.
Chance then decides which launches belong to which side. This gives a test without an assumption
about the noise. The sides differ only if the true split of the launches separates the curves more
than any other split into two groups of these sizes. With four launches a side there are 35 splits,
with six 462: equal commits are called different at most once in 35 (or 462) comparisons.

A second condition makes false alarms rarer for ordinary noise. The separation must pass Student's t
test at 1 %, shared among all points of the curve (Bonferroni). The test assumes at least the spread
of float32 rounding, so a difference below about a millionth of the loss does not count.
`scripts/simulate_training.py` has the error rates.

The distance of the curves is that of the loss guard of `--optimize`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.formatting.number_text import count
from gpurun.records.bench.benchmark import LossCurve
from gpurun.records.bench.comparison import TrainingComparison
from gpurun.stats.curve_separation import CurveTable
from gpurun.stats.loss_curve_points import blocks, steps_below
from gpurun.stats.loss_deviation import deviation, differences, repeat_spread
from gpurun.stats.two_samples import chance_of_more

LEAST = 4
"""With fewer launches of a side, too many splits of them are as good as the true one. Where the
launches of a side repeat each other exactly there is no chance in them, and two are enough."""
LEAST_NONFINITE = 2
"""So many launches suffice if all of one side are finite and all of the other are not: they have
one seed, and a loss is finite or not."""
NOT_BY_CHANCE = 0.025
"""The one-sided p-value below which losses that are not finite in some launches are no chance."""
ROUNDING = 1e-6
"""About ten times the rounding of float32: a smaller difference of losses does not count."""
HONEST = "one more random number, or other rounding, also causes this"

Curves = Sequence[LossCurve | None]


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
    few = min(counts) < LEAST
    if few and not (_repeat(mine) and _repeat(theirs)):
        told = f"only {count(min(counts), 'launch')} of a side, {LEAST} are needed"
        return untold(f"{told}; {lost.told}" if lost is not None else told)
    return _by_curves(mine, theirs, lost, exact=few)


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
    all_of, proven = (len(baseline), len(current)), min(counts) >= LEAST_NONFINITE or None
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
    baseline: Sequence[LossCurve],
    current: Sequence[LossCurve],
    lost: TrainingComparison | None,
    exact: bool,
) -> TrainingComparison:
    """`exact`: the launches of a side repeat each other. Then the first point that rounding does
    not explain tells the sides apart, else the test of all splits."""
    counts = (len(baseline), len(current))
    also = "" if lost is None else f"; {lost.told}"
    if exact:
        step = _first_step_apart(baseline[0], current[0])
        differs = step is not None
    else:
        table = CurveTable([*baseline, *current], len(baseline))
        if not table.values:
            return TrainingComparison(None, counts, f"the training was not compared{also}")
        differs = table.differs()
        step = table.first_step() if differs else None
    size, spread = _sizes(baseline, current)
    repeats = f"repeats of one side: {_percent(spread)}" if spread else "repeats are equal"
    if differs:
        where = "" if step is None else f" from step {step} on"
        told = (
            f"the training differs: the loss is not the baseline's{where}, by up to "
            f"{_percent(size)} ({repeats}); {HONEST}{also}"
        )
        return TrainingComparison(True, counts, told, step, size, spread)
    told = f"no difference in training was seen in {counts[0]} and {counts[1]} loss curves"
    # Launches that end in NaN now and then are no ground for saying that all is well.
    same = len({curve.nonfinite_step for curve in (*baseline, *current)}) == 1
    found = None if lost is not None and not same else False
    return TrainingComparison(found, counts, f"{told} ({repeats}){also}", None, size, spread)


def _repeat(side: Sequence[LossCurve]) -> bool:
    """True if at least two launches have equal losses as far as all go."""
    points = zip(*(curve.points for curve in side), strict=False)
    ends = {curve.nonfinite_step for curve in side}
    return len(side) > 1 and len(ends) == 1 and all(len(set(each)) == 1 for each in points)


def _first_step_apart(one: LossCurve, other: LossCurve) -> int | None:
    """The first step of the first point at which two curves differ by more than rounding."""
    shared = zip(one.points, other.points, blocks(1 << 62), strict=False)
    return next((start + 1 for a, b, (start, _) in shared if not _same_but_rounding(a, b)), None)


def _same_but_rounding(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=ROUNDING)


@dataclass(frozen=True)
class _Curve:
    seed: int
    losses: Sequence[float]


def _sizes(baseline: Sequence[LossCurve], current: Sequence[LossCurve]) -> tuple[float, float]:
    """The distance of the two sides, and the largest distance of repeats of one side."""
    sides = [
        [_Curve(0, [math.nan if x is None else x for x in c.points]) for c in side]
        for side in (baseline, current)
    ]
    parts = len(differences(sides[0][0].losses, sides[1][0].losses))
    spread = max(max(repeat_spread(side, parts), default=0.0) for side in sides)
    found = deviation(sides[0], sides[1])
    return 0.0 if found is None else found.size, spread


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
