"""Loss curves: their distance by parts, losses that are not finite, losses that run away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.named_distance import Distance, Distances, Kind, Name, exact
from gpurun.same.sameness_table import ENOUGH, PARTS, SMALLEST, TREND
from gpurun.stats.descriptive import median


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


def parts(
    ours: Sequence[float], theirs: Sequence[float], count: int = PARTS
) -> list[tuple[float, float]]:
    """By part of the steps that both curves have: the relative difference, its standard error."""
    both = [
        (a, b) for a, b in zip(ours, theirs, strict=False) if math.isfinite(a) and math.isfinite(b)
    ]
    if not both:
        return []
    size = max(1, math.ceil(len(both) / count))
    split = [both[i : i + size] for i in range(0, len(both), size)]
    means = [math.fsum(b for _, b in part) / len(part) for part in split]
    least = SMALLEST * max(map(abs, means))
    found = []
    for part, mean in zip(split, means, strict=True):
        apart, scale = [a - b for a, b in part], max(abs(mean), least) or 1.0
        found.append((math.fsum(apart) / len(apart) / scale, standard_error(apart) / scale))
    return found


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean of a series whose neighbours may resemble each other."""
    count = len(values)
    if count < ENOUGH:
        return 0.0
    mean = math.fsum(values) / count
    square = math.fsum((x - mean) ** 2 for x in values)
    if square == 0:
        return 0.0
    likeness = math.fsum((x - mean) * (y - mean) for x, y in pairwise(values)) / square
    likeness = min(max(likeness, 0.0), TREND)
    independent = count * (1 - likeness) / (1 + likeness)
    return math.sqrt(square / (count - 1) / independent)


def finite_distances(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """No NaN and no infinity where the other is finite, and a loss where it has one."""
    return {
        **exact(Kind.FINITE, "loss", _not_finite(ours, theirs)),
        **exact(
            Kind.FINITE,
            "curve",
            "no loss was seen" if theirs.finite_losses and not ours.finite_losses else None,
        ),
    }


def _not_finite(ours: LaunchAudit, theirs: LaunchAudit) -> str | None:
    sound = not any(math.isinf(x) for x in theirs.losses)
    for step, loss in enumerate(ours.losses):
        known = step < len(theirs.losses)
        if math.isinf(loss) and (not math.isinf(theirs.losses[step]) if known else sound):
            return f"the loss is not finite at step {step + 1}"
    return None


def runaway_distances(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """The losses of the last part over the largest loss of the other launch."""
    known = [abs(x) for x in theirs.losses if math.isfinite(x)]
    tail = [x for x in ours.losses[-max(1, len(ours.losses) // PARTS) :] if math.isfinite(x)]
    if not known or not tail or not max(known):
        return {}
    said = f"the loss diverges ({median(tail):.3g} after at most {max(known):.3g})"
    return {Name(Kind.RUNAWAY): Distance(max(0.0, median(tail)) / max(known), said)}
