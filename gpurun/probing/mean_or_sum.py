"""Is the loss a mean or a sum over samples? Compares gradients of half batches with the whole's.

With g of the whole batch and g1, g2 of its halves, (g1 + g2) / 2 is g for a mean over samples and
g / 2 for a sum. All thresholds are here. Gradients come as linear sketches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpurun.records.events import GradientEvent
from gpurun.records.spec import LossReduction

ROUNDING = 5e-5
"""Gradients that differ by less are the same: what single precision does to them, times ten."""
EPSILONS = 8
"""The same in coarser precisions: so many times their machine epsilon."""
SLOPE_OF_MEAN, SLOPE_OF_SUM = 0.1, 0.05
"""Largest distance of a mean's slopes from 1, and of a sum's slopes from 1/2."""
MOST_RESIDUAL = 0.2
"""A mean of which halves differ by more is not trained."""
FLOOR = 1e-2
"""Share of the norm of all gradients: a smaller one is compared with this, because it may be
rounding."""
IGNORED = 1e-3
"""The slope of a group whose gradient is less of the norm of all says nothing."""
TODO = (
    "divide sums by the number of samples at hand, as x.size(0), so that the loss is a mean; or "
    "set --loss-reduction mean or sum; or run it without --ddp"
)
TODO_COUPLED = (
    "set --loss-reduction mean, so that ranks average their gradients as DistributedDataParallel "
    "does by hand; or run it without --ddp"
)


@dataclass(frozen=True)
class ReductionVerdict:
    """The loss reduction. None: it is unknown, `what` and `todo` give the reason and the cure.

    `residual`: by what part of the gradient the halves differ from the whole batch.
    """

    reduction: LossReduction | None
    residual: float
    what: str = ""
    todo: str = TODO

    @property
    def exact(self) -> bool:
        """True if ranks train what one process trains, to rounding."""
        return not self.what


@dataclass(frozen=True)
class Fit:
    """One backward pass and one parameter group: how the halves compare with the whole batch.

    `slope`: of the halves' mean on the whole; `apart`: the distance of that mean from the whole.
    `as_mean`, `as_sum`: the largest distance of any parameter, were it a mean or a sum.
    """

    slope: float
    apart: float
    as_mean: float
    as_sum: float
    matters: bool
    tolerance: float


def judge_reduction(
    whole: Sequence[GradientEvent], first: Sequence[GradientEvent], second: Sequence[GradientEvent]
) -> ReductionVerdict:
    """The verdict on the passes of three launches."""
    fits = [fit for passes in _comparable(whole, first, second) for fit in _fits(*passes)]
    if not fits:
        return ReductionVerdict(None, math.inf, "no gradient of a batch and of its halves was seen")
    means, sums = max(fit.as_mean for fit in fits), max(fit.as_sum for fit in fits)
    if all(fit.as_mean <= fit.tolerance for fit in fits):
        return ReductionVerdict(LossReduction.MEAN, means)
    if all(fit.as_sum <= fit.tolerance for fit in fits):
        return ReductionVerdict(LossReduction.SUM, sums)
    slopes = [fit.slope for fit in fits if fit.matters]
    residual = max(fit.apart for fit in fits)
    if not all(abs(s - 1) <= SLOPE_OF_MEAN for s in slopes):
        return ReductionVerdict(None, residual, _words(slopes, sums))
    if residual <= MOST_RESIDUAL:
        return ReductionVerdict(
            LossReduction.MEAN,
            residual,
            "the loss is a mean of something else than samples (tokens, weights of classes), or "
            "has a small sum beside a mean, or noise drawn by numpy: the gradient of halves of a "
            f"batch is within {residual:.2%} of the batch's; ranks average theirs, as "
            "DistributedDataParallel does by hand",
        )
    return ReductionVerdict(
        None,
        residual,
        f"halves of a batch give another gradient than the batch: {residual:.0%} apart; the loss "
        "of a sample depends on other samples (a queue, a contrast) or on draws of numpy",
        TODO_COUPLED,
    )


def _words(slopes: Sequence[float], sums: float) -> str:
    shown = " to ".join(f"{s:.3g}" for s in sorted({round(min(slopes), 3), round(max(slopes), 3)}))
    found = f"halves of a batch give {shown} of its gradient on average (a mean gives 1, a sum 0.5)"
    if all(abs(s - 0.5) <= SLOPE_OF_SUM for s in slopes):
        return (
            f"the loss is a sum over samples, and {sums:.2g} of its gradient is none: a penalty or "
            "a mean beside it would count once for each rank"
        )
    if max(slopes) - min(slopes) > SLOPE_OF_MEAN:
        return f"parts of the training reduce in different ways: {found}"
    return f"the loss is neither a mean over samples nor a sum: {found}"


Passes = tuple[GradientEvent, GradientEvent, GradientEvent]


def _comparable(
    whole: Sequence[GradientEvent], first: Sequence[GradientEvent], second: Sequence[GradientEvent]
) -> Iterator[Passes]:
    """The passes that started from the same weights, of batches that were parted."""
    for passes in zip(whole, first, second, strict=False):
        of_all, one, other = passes
        parted = 0 < one.own < one.total and 0 < other.own < other.total
        same = of_all.weights == one.weights == other.weights
        if parted and same and any(of_all.sketches) and all(map(_finite, passes)):
            yield passes


def _finite(event: GradientEvent) -> bool:
    return all(math.isfinite(x) for sketch in event.sketches.values() for x in sketch)


def _fits(whole: GradientEvent, first: GradientEvent, second: GradientEvent) -> Iterator[Fit]:
    own = first.own + second.own
    shares = first.own / own, second.own / own
    names = list(dict.fromkeys((*whole.sketches, *first.sketches, *second.sketches)))
    events = (whole, first, second)
    length = {n: max(len(e.sketches.get(n, ())) for e in events) for n in names}
    of_all, one, other = ({n: e.sketches.get(n, (0.0,) * length[n]) for n in names} for e in events)
    total = math.sqrt(sum(_dot(x, x) for x in of_all.values()))
    if not total:
        return
    for group in dict.fromkeys(name.rpartition(".")[0] for name in names):
        mine = [name for name in names if name.rpartition(".")[0] == group]
        mean = {n: _mixed(one[n], other[n], *shares) for n in mine}
        sums = {n: _mixed(one[n], other[n], 1.0, 1.0) for n in mine}
        size = math.sqrt(sum(_dot(of_all[n], of_all[n]) for n in mine))
        apart = math.sqrt(sum(_distance(mean[n], of_all[n]) ** 2 for n in mine))
        product = sum(_dot(mean[n], of_all[n]) for n in mine)
        yield Fit(
            slope=product / size**2 if size else math.inf,
            apart=apart / max(size, FLOOR * total),
            as_mean=max(_relative(mean[n], of_all[n], total) for n in mine),
            as_sum=max(_relative(sums[n], of_all[n], total) for n in mine),
            matters=size > IGNORED * total,
            tolerance=max(ROUNDING, EPSILONS * whole.precision),
        )


def _mixed(
    one: Sequence[float], other: Sequence[float], first: float, second: float
) -> tuple[float, ...]:
    return tuple(first * x + second * y for x, y in zip(one, other, strict=True))


def _relative(found: Sequence[float], whole: Sequence[float], total: float) -> float:
    return _distance(found, whole) / max(math.sqrt(_dot(whole, whole)), FLOOR * total)


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    return math.dist(one, other)


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(one, other, strict=True))
