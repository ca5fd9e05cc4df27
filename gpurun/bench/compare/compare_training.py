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
from dataclasses import dataclass, replace

from gpurun.formatting.number_text import count
from gpurun.records.bench.benchmark import LossCurve
from gpurun.records.bench.comparison import TrainingComparison
from gpurun.stats.curve_separation import CurveTable
from gpurun.stats.loss_curve_points import steps_below
from gpurun.stats.loss_deviation import deviation, differences, repeat_spread

LEAST = 4
"""With fewer launches of a side, too many splits of them are as good as the true one."""
LEAST_NONFINITE = 2
"""So many launches suffice if all of one side are finite and all of the other are not: they have
one seed, and a loss is finite or not."""
NOT_BY_CHANCE = 0.05
HONEST = "one more random number, or other rounding, also causes this"

Curves = Sequence[LossCurve | None]


def compare_training(baseline: Curves, current: Curves) -> TrainingComparison:
    """Compare the curves of both sides' launches; None stands for a launch without a loss."""
    counts = (len(baseline), len(current))
    mine = [curve for curve in baseline if curve is not None]
    theirs = [curve for curve in current if curve is not None]

    def untold(why: str) -> TrainingComparison:
        return TrainingComparison(None, counts, f"the training was not compared: {why}")

    if not mine and not theirs:
        return untold("no loss was seen" if any(counts) else "no pair of launches was completed")
    if (len(mine), len(theirs)) != counts:
        return untold(
            f"a loss was seen in {len(mine)} of {count(counts[0], 'launch')} of the baseline "
            f"and in {len(theirs)} of {counts[1]} of the current side"
        )
    lost = _lost(mine, theirs)
    if lost is not None and lost.whole:
        return TrainingComparison(
            True, counts, lost.told, lost.step, nonfinite_from_step=lost.regressed
        )
    if lost is not None and lost.often:
        return TrainingComparison(True, counts, f"the training differs: {lost.told}", lost.step)
    if min(counts) < LEAST:
        few = f"only {count(min(counts), 'launch')} of a side, {LEAST} are needed"
        return untold(f"{few}; {lost.told}" if lost is not None else few)
    return _by_curves(mine, theirs, lost)


def loses_its_loss(baseline: Curves, current: Curves) -> bool:
    """True if the current loss is proven not finite where the baseline's is: a regression.

    The part of `compare_training` that is cheap enough to be asked after every pair.
    """
    mine = [curve for curve in baseline if curve is not None]
    theirs = [curve for curve in current if curve is not None]
    if (len(mine), len(theirs)) != (len(baseline), len(current)):
        return False
    lost = _lost(mine, theirs)
    return lost is not None and lost.whole and lost.regressed is not None


def _lost(baseline: Sequence[LossCurve], current: Sequence[LossCurve]) -> _NonFinite | None:
    """The losses that are not finite; those of too few launches are not `whole`."""
    far = _that_reach(baseline, current)
    lost = _nonfinite(*far)
    if lost is None or min(map(len, far)) >= LEAST_NONFINITE:
        return lost
    return replace(lost, whole=False)


@dataclass(frozen=True)
class _NonFinite:
    """Losses that are NaN or infinite. `whole`: in all launches of one side and in none of the
    other. `step`: the first such step; `regressed`: the same where that side is the current one.
    `often`: one side has more of them than chance deals out, by Fisher's exact test.
    """

    told: str
    whole: bool
    step: int
    regressed: int | None = None
    often: bool = False


def _that_reach(
    baseline: Sequence[LossCurve], current: Sequence[LossCurve]
) -> tuple[list[LossCurve], list[LossCurve]]:
    """The curves without those that ended before the last step at which one ceased to be finite.

    Launches that take turns train for unequal numbers of steps: a finite loss of a shorter one says
    nothing of what follows.
    """
    last = max((c.nonfinite_step or 0 for c in (*baseline, *current)), default=0)
    reach = [
        [c for c in side if c.nonfinite_step or steps_below(len(c.points)) > last]
        for side in (baseline, current)
    ]
    return reach[0], reach[1]


def _nonfinite(baseline: Sequence[LossCurve], current: Sequence[LossCurve]) -> _NonFinite | None:
    """Losses that are not finite on the two sides; None if all are finite, or none on either."""
    bad = [[c.nonfinite_step for c in side if c.nonfinite_step] for side in (baseline, current)]
    if not any(bad):
        return None
    step = min(min(steps) for steps in bad if steps)
    if not bad[0] and len(bad[1]) == len(current):
        told = f"the loss is not finite from step {step} on; the baseline's is finite"
        return _NonFinite(told, True, step, step)
    if not bad[1] and len(bad[0]) == len(baseline):
        told = f"the training differs: the baseline's loss is not finite from step {step} on"
        return _NonFinite(f"{told}; the current one's is finite", True, step)
    told = (
        f"the loss is not finite in {len(bad[0])} of {count(len(baseline), 'launch')} of the "
        f"baseline and in {len(bad[1])} of {len(current)} of the current side"
    )
    counts = len(baseline), len(current)
    chance = _chance((len(bad[0]), len(bad[1])), counts)
    return _NonFinite(told, False, step, often=chance < NOT_BY_CHANCE)


def _chance(bad: tuple[int, int], counts: tuple[int, int]) -> float:
    """Two-sided p-value of Fisher's exact test on launches whose loss is not finite."""
    total, size = sum(bad), sum(counts)

    def weight(first: int) -> float:
        return math.comb(counts[0], first) * math.comb(counts[1], total - first)

    own = weight(bad[0])
    dealt = (weight(n) for n in range(max(0, total - counts[1]), min(total, counts[0]) + 1))
    return math.fsum(w for w in dealt if w <= own) / math.comb(size, total)


def _by_curves(
    baseline: Sequence[LossCurve], current: Sequence[LossCurve], lost: _NonFinite | None
) -> TrainingComparison:
    counts = (len(baseline), len(current))
    table = CurveTable([*baseline, *current], len(baseline))
    also = "" if lost is None else f"; {lost.told}"
    if not table.values:
        return TrainingComparison(None, counts, f"the training was not compared{also}")
    size, spread = _sizes(baseline, current)
    repeats = f"repeats of one side: {_percent(spread)}" if spread else "repeats are equal"
    if table.differs():
        step = table.first_step()
        where = "" if step is None else f" from step {step} on"
        told = (
            f"the training differs: the loss is not the baseline's{where}, by up to "
            f"{_percent(size)} ({repeats}); {HONEST}{also}"
        )
        return TrainingComparison(True, counts, told, step, size, spread)
    told = f"no difference in training was seen in {counts[0]} and {counts[1]} loss curves"
    # Launches that end in NaN now and then are no ground for saying that all is well.
    found = None if lost is not None and not _same_end(baseline, current) else False
    return TrainingComparison(found, counts, f"{told} ({repeats}){also}", None, size, spread)


def _same_end(baseline: Sequence[LossCurve], current: Sequence[LossCurve]) -> bool:
    """True if the loss of every launch is not finite from the same step on."""
    return len({curve.nonfinite_step for curve in (*baseline, *current)}) == 1


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
