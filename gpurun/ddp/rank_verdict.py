"""Do N ranks train what one process trains? Compares two launches' first steps.

Pure, and the one place that judges, by thresholds of the one table of sameness.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from gpurun.same.sameness_table import (
    LAST_STEPS,
    LEAST_NORM,
    LEAST_PART,
    MOST_APART,
    RANKS,
    SLOPE_OF_MEAN,
    SLOPE_OF_SUM,
)
from gpurun.same.step_distances import by_child
from gpurun.stats.descriptive import root_mean_square


@dataclass(frozen=True)
class TrainedStep:
    """One step. `gradients`: some numbers of each parameter's gradient. `norms` and `updates` are
    of all numbers."""

    gradients: Mapping[str, tuple[float, ...]]
    norms: Mapping[str, float | None]
    updates: Mapping[str, float]


@dataclass(frozen=True)
class TrainedSteps:
    """The audited steps of one launch, and the data-set indices that its ranks read for them."""

    steps: tuple[TrainedStep, ...]
    samples: frozenset[int]


class Kind(enum.Enum):
    """The four verdicts."""

    EQUAL = "equal"
    SUM = "a sum"
    AS_DDP = "as hand-written DDP"
    REFUSED = "refused"


@dataclass(frozen=True)
class RankVerdict:
    """`apart`: by what part of it the gradient of ranks differs from that of one process, as a root
    mean square over the steps.

    `said`: the distance that differs first, and the step; "" where nothing does. `later`: it is
    only later steps that differ, and it may be rounding. `most`: the largest distance of a step.
    """

    kind: Kind
    apart: float
    said: str = ""
    later: bool = False
    most: float = math.inf


@dataclass(frozen=True)
class Compared:
    """A step of both launches. `slopes`: of the ranks' gradients on those of one process, by part
    of the model. `apart`: of all gradients; `worst`: of the parameter that differs most, `name`.
    """

    step: int
    slopes: Mapping[str, float]
    apart: float
    worst: float
    name: str
    update: float
    """By what part the size of the update differs that differs most."""


def judge(
    one: TrainedSteps, many: TrainedSteps, ranks: int, rounded: TrainedSteps | None = None
) -> RankVerdict:
    """The verdict on a launch of one process and one of ranks that average their gradients.

    `SUM`: all first gradients are 1/N of those of one process. Whoever launches ranks again, with
    that factor, has `judge` tell whether they are equal then. `rounded`: a launch of one process
    that only rounds otherwise; it tells how much that matters in later steps.
    """
    compared = list(_compared(one, many))
    if not compared:
        said = "no gradient of both launches was seen at the same step"
        return RankVerdict(Kind.REFUSED, math.inf, said)
    apart = root_mean_square([each.apart for each in compared])
    if one.samples and many.samples and one.samples != many.samples:
        return RankVerdict(Kind.REFUSED, apart, "the ranks read other samples than one process")
    floor = _floor([] if rounded is None else list(_compared(one, rounded)))
    said = _first_difference(compared, _bound(floor))
    if not said:
        # beside a floor above the ceiling later steps are not compared
        untold = _first_difference(compared, RANKS.least) if floor > RANKS.ceiling else ""
        return RankVerdict(Kind.EQUAL, apart, untold, later=bool(untold))
    first = compared[0].slopes
    if first and all(abs(ranks * slope - 1) <= SLOPE_OF_SUM for slope in first.values()):
        return RankVerdict(Kind.SUM, apart, said)
    # a share that has more of something than another weighs too much in one step, too little
    # later; a fault that begins late stays to the last step
    near = _near_as_ddp(compared) and _near_as_ddp(compared[-LAST_STEPS:])
    later = not floor and not _difference(compared[0], RANKS.least)
    most = max(max(each.worst, each.update) for each in compared)
    return RankVerdict(Kind.AS_DDP if near else Kind.REFUSED, apart, said, later, most)


def _near_as_ddp(compared: Sequence[Compared]) -> bool:
    """Do these steps, on average, train as those of hand-written DDP may?"""
    apart = root_mean_square([each.apart for each in compared])
    updates = fmean(each.update for each in compared)
    parts = {part for each in compared for part in each.slopes}
    slopes = [fmean(c.slopes[part] for c in compared if part in c.slopes) for part in parts]
    near = all(abs(slope - 1) <= SLOPE_OF_MEAN for slope in slopes)
    return near and max(apart, updates) <= MOST_APART


def _floor(rounded: Sequence[Compared]) -> float:
    """How far rounding alone moves later gradients. 0 if the launch that rounds tells nothing: it
    rounded nothing, or its first gradients differ by more than rounding."""
    usable = bool(rounded) and rounded[0].worst <= RANKS.least
    return max(each.worst for each in rounded) if usable else 0.0


def _bound(floor: float) -> float:
    """How far later gradients of the same training may be apart."""
    noise = RANKS.k * floor
    return max(RANKS.least, noise if floor > RANKS.ceiling else min(noise, RANKS.ceiling))


def _first_difference(compared: Sequence[Compared], bound: float) -> str:
    return next((text for each in compared if (text := _difference(each, bound))), "")


def _difference(compared: Compared, bound: float) -> str:
    """What differs in a step, in words; "" if nothing does. The bound is of later steps."""
    step = compared.step
    bound = RANKS.least if step == 1 else bound
    if compared.worst > bound:
        slopes = compared.slopes.values()
        shown = " to ".join(f"{slope:.3g}" for slope in sorted({min(slopes), max(slopes)}))
        return (
            f"in step {step} the gradient of {compared.name} differs by {compared.worst:.2%} "
            f"({shown} of that of one process)"
        )
    if compared.update > max(RANKS.ceiling, bound):
        return f"in step {step} the size of an update differs by {compared.update:.2%}"
    return ""


def _compared(one: TrainedSteps, many: TrainedSteps) -> Iterator[Compared]:
    for number, (mine, theirs) in enumerate(zip(one.steps, many.steps, strict=False), 1):
        norms = {n: x for n, x in mine.norms.items() if x and math.isfinite(x)}
        total = math.hypot(*norms.values())
        if theirs.norms and total:
            yield _step(number, mine, theirs, norms, total)


def _step(
    number: int, one: TrainedStep, many: TrainedStep, norms: Mapping[str, float], total: float
) -> Compared:
    slopes: dict[str, float] = {}
    distances: dict[str, float] = {}
    for name, norm in norms.items():
        slope, apart = _fit(name, one, many)
        slopes[name], distances[name] = slope, apart * norm
    worst = {n: d / max(norms[n], LEAST_NORM * total) for n, d in distances.items()}
    name = max(worst, key=lambda n: worst[n])
    return Compared(
        step=number,
        slopes=dict(_by_part(slopes, norms, total)),
        apart=math.hypot(*distances.values()) / total,
        worst=worst[name],
        name=name,
        update=max(
            (_ratio(n, one, many) for n in norms if norms[n] > LEAST_NORM * total), default=0.0
        ),
    )


def _fit(name: str, one: TrainedStep, many: TrainedStep) -> tuple[float, float]:
    """The slope of the ranks' gradient of a parameter on that of one process, and their distance.

    The norms are of all numbers, the numbers are some of them.
    """
    other, norm = many.norms.get(name), one.norms[name] or math.inf
    if other is None or not math.isfinite(other):
        return 0.0, 1.0
    ratio = other / norm
    mine, theirs = one.gradients.get(name, ()), many.gradients.get(name, ())
    size = math.fsum(x * x for x in mine)
    if len(mine) != len(theirs) or not size:
        return ratio, abs(ratio - 1)
    slope = math.fsum(x * y for x, y in zip(mine, theirs, strict=True)) / size
    return slope, max(math.dist(mine, theirs) / math.sqrt(size), abs(ratio - 1))


def _by_part(
    slopes: Mapping[str, float], norms: Mapping[str, float], total: float
) -> Iterator[tuple[str, float]]:
    """The slope of each child of the model."""
    for part, names in by_child(slopes).items():
        square = math.fsum(norms[n] ** 2 for n in names)
        if math.sqrt(square) > LEAST_PART * total:
            yield part, math.fsum(slopes[n] * norms[n] ** 2 for n in names) / square


def _ratio(name: str, one: TrainedStep, many: TrainedStep) -> float:
    mine, theirs = one.updates.get(name), many.updates.get(name)
    if not mine or theirs is None or not math.isfinite(mine):
        return 0.0
    return abs(theirs / mine - 1)
