"""Do N ranks train what one process trains? Compares two launches' first steps.

Pure, and the one place that judges: all thresholds are here.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpurun.ddp.trained_steps import TrainedStep, TrainedSteps

ROUNDING = 5e-5
"""First gradients that differ by less are the same: what single precision does to them, times ten.
"""
LATER = 1e-2
"""The same of later steps and of updates: an optimizer that divides by the gradient's size makes
whole steps of its rounding."""
SLOPE_OF_MEAN, SLOPE_OF_SUM = 0.1, 0.05
"""Largest distance of a mean's slopes from 1, and of a sum's from 1/N, as a part of it."""
MOST_APART = 0.2
"""Gradients that are further apart are not trained."""
FLOOR = 1e-2
"""Share of the norm of all gradients: a smaller one is compared with this, because it may be
rounding."""
IGNORED = 1e-3
"""The slope of a part of the model whose gradient is less of the norm of all says nothing."""


class Kind(enum.Enum):
    """The four verdicts."""

    EQUAL = "equal"
    SUM = "a sum"
    AS_DDP = "as hand-written DDP"
    REFUSED = "refused"


@dataclass(frozen=True)
class RankVerdict:
    """`apart`: by what part of it the gradient of ranks differs from that of one process, at most.

    `said`: the distance that differs first, and the step; "" where nothing does.
    """

    kind: Kind
    apart: float
    said: str = ""


@dataclass(frozen=True)
class Compared:
    """A step of both launches. `slopes`: of the ranks' gradients on those of one process, by part
    of the model. `apart`: of all gradients; `worst`: of the parameter that differs most, `name`.
    """

    step: int
    slopes: tuple[float, ...]
    apart: float
    worst: float
    name: str
    update: float
    """By what part the size of the update differs that differs most."""


def judge(one: TrainedSteps, many: TrainedSteps, ranks: int) -> RankVerdict:
    """The verdict on a launch of one process and one of ranks that average their gradients.

    `SUM`: all first gradients are 1/N of those of one process. Whoever launches ranks again, with
    that factor, has `judge` tell whether they are equal then.
    """
    compared = list(_compared(one, many))
    if not compared:
        said = "no gradient of both launches was seen at the same step"
        return RankVerdict(Kind.REFUSED, math.inf, said)
    apart = max(each.apart for each in compared)
    if one.samples and many.samples and one.samples != many.samples:
        return RankVerdict(Kind.REFUSED, apart, "the ranks read other samples than one process")
    said = next(filter(None, map(_difference, compared)), "")
    if not said:
        return RankVerdict(Kind.EQUAL, apart)
    first = compared[0].slopes
    if first and all(abs(ranks * slope - 1) <= SLOPE_OF_SUM for slope in first):
        return RankVerdict(Kind.SUM, apart, said)
    slopes = [slope for each in compared for slope in each.slopes]
    updates = max(each.update for each in compared)
    near = all(abs(slope - 1) <= SLOPE_OF_MEAN for slope in slopes)
    kind = Kind.AS_DDP if near and max(apart, updates) <= MOST_APART else Kind.REFUSED
    return RankVerdict(kind, apart, said)


def _difference(compared: Compared) -> str:
    """What differs in a step, in words; "" if nothing does."""
    step = compared.step
    if compared.worst > (ROUNDING if step == 1 else LATER):
        shown = " to ".join(
            f"{s:.3g}" for s in sorted({min(compared.slopes), max(compared.slopes)})
        )
        return (
            f"in step {step} the gradient of {compared.name} differs by {compared.worst:.2%} "
            f"({shown} of that of one process)"
        )
    if compared.update > LATER:
        return f"in step {step} the size of an update differs by {compared.update:.2%}"
    return ""


def _compared(one: TrainedSteps, many: TrainedSteps) -> Iterator[Compared]:
    for number, (mine, theirs) in enumerate(zip(one.steps, many.steps, strict=False), 1):
        norms = {n: x for n, x in mine.norms.items() if x and math.isfinite(x)}
        total = math.hypot(*norms.values())
        if mine.gradients and theirs.gradients and total:
            yield _step(number, mine, theirs, norms, total)


def _step(
    number: int, one: TrainedStep, many: TrainedStep, norms: Mapping[str, float], total: float
) -> Compared:
    slopes: dict[str, float] = {}
    distances: dict[str, float] = {}
    for name, norm in norms.items():
        slope, apart = _fit(name, one, many)
        slopes[name], distances[name] = slope, apart * norm
    worst = {n: d / max(norms[n], FLOOR * total) for n, d in distances.items()}
    name = max(worst, key=lambda n: worst[n])
    return Compared(
        step=number,
        slopes=tuple(_by_part(slopes, norms, total)),
        apart=math.hypot(*distances.values()) / total,
        worst=worst[name],
        name=name,
        update=max((_ratio(n, one, many) for n in norms if norms[n] > FLOOR * total), default=0.0),
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
) -> Iterator[float]:
    """The slope of each child of the model, by the first two names of its parameters."""
    parts: dict[str, list[str]] = {}
    for name in slopes:
        parts.setdefault(".".join(name.split(".")[:2]), []).append(name)
    for names in parts.values():
        square = math.fsum(norms[n] ** 2 for n in names)
        if math.sqrt(square) > IGNORED * total:
            yield math.fsum(slopes[n] * norms[n] ** 2 for n in names) / square


def _ratio(name: str, one: TrainedStep, many: TrainedStep) -> float:
    mine, theirs = one.updates.get(name), many.updates.get(name)
    if not mine or theirs is None or not math.isfinite(mine):
        return 0.0
    return abs(theirs / mine - 1)
