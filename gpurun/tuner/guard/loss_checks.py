"""A candidate's losses beside those of the script as it is: too far off, infinite, running away."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

from gpurun.knobs.api import Effect
from gpurun.records.tuning import LossCurves
from gpurun.stats.descriptive import median
from gpurun.stats.loss_deviation import (
    MOST_BY_ROUNDING,
    Deviation,
    compared_steps,
    deviation,
    goes_as_far,
    grows,
    longest,
)
from gpurun.tuner.guard.training_evidence import (
    PIPELINE_ONLY,
    UNKNOWN_ROUNDING,
    Comparison,
    Evidence,
    RoundingReason,
)


def finite(case: Comparison) -> str | None:
    """No NaN and no infinity where the baseline has none."""
    length = max((len(b.losses) for b in case.baselines), default=0)
    sound = not any(math.isinf(x) for b in case.baselines for x in b.losses)
    for step, loss in enumerate(case.candidate.losses):
        if math.isinf(loss) and (sound or (step < length and _all_finite(case, step))):
            return f"the loss is not finite at step {step + 1}"
    return None


def _all_finite(case: Comparison, step: int) -> bool:
    return not any(math.isinf(b.losses[step]) for b in case.baselines if step < len(b.losses))


def has_loss(case: Comparison) -> str | None:
    """A loss curve to compare, where the baseline has one."""
    if all(b.finite_losses for b in case.baselines) and not case.candidate.finite_losses:
        return "no loss was seen"
    return None


def to_compare_with(case: Comparison) -> str | None:
    """Any finite loss of the script as it is, where a change rounds."""
    if case.effect is Effect.NUMERICS and any(b.never_finite for b in case.baselines):
        return f"losses not compared: the script's own is not finite; {PIPELINE_ONLY}"
    return None


def runaway(case: Comparison) -> str | None:
    """The loss stays within what the baseline shows."""
    start = [b.losses[0] for b in case.baselines if b.losses and math.isfinite(b.losses[0])]
    tail = [x for x in case.candidate.losses[-5:] if math.isfinite(x)]
    known = [abs(x) for b in case.baselines for x in b.losses if math.isfinite(x)]
    if start and tail and median(tail) > 2 * max(*known, *start):
        return f"the loss diverges ({median(tail):.3g} after starting at {max(start):.3g})"
    return None


def compare_curves(
    baselines: Sequence[Evidence],
    candidates: Sequence[Evidence],
    effect: Effect,
    rounded: Sequence[Evidence] = (),
) -> tuple[Deviation | None, str | None]:
    """How far the candidates' curves are off (None: cannot be told), and why it is too far.

    It cannot be told of losses that are finite at first only, though they can be too far off.
    Rounding grows from step to step in some trainings, and a script that repeats itself to the last
    bit shows nothing of it: where numerics change, trials that only round (`rounded`) do.
    """
    apart = deviation(baselines, candidates, rounded if effect is Effect.NUMERICS else ())
    told = None if any(b.nonfinite_from for b in baselines) else apart
    if apart is None or apart.size <= apart.bound:
        return told, None
    said = f"the loss deviates by {apart.size:.1%} (allowed {apart.bound:.1%}"
    steps = compared_steps(baselines, candidates)
    known = any(goes_as_far(draw, baselines, steps) for draw in rounded)
    text = f"{said})" if known else f"{said}; {UNKNOWN_ROUNDING})"
    if effect is Effect.NUMERICS and told and told.size <= MOST_BY_ROUNDING:
        return told, RoundingReason(text) if not known or grows(told) else text
    return told, f"{said})"


def curves(baselines: Sequence[Evidence], candidates: Sequence[Evidence]) -> LossCurves | None:
    """The candidate's worst curve beside the baseline's of the same seed, and their range."""
    if not baselines or not candidates:
        return None

    def off(candidate: Evidence) -> float:
        found = deviation(baselines, [candidate])
        return found.size if found else 0.0

    worst = max(candidates, key=off)
    reference = longest(baselines, worst.seed) or baselines[0]
    steps = [
        [x for x in at if math.isfinite(x)]
        for at in zip_longest(*(b.losses for b in baselines), fillvalue=math.nan)
    ]
    return LossCurves(
        baseline=_plain(reference.losses),
        candidate=_plain(worst.losses),
        lowest=tuple(min(at, default=None) for at in steps),
        highest=tuple(max(at, default=None) for at in steps),
    )


def _plain(losses: Sequence[float]) -> tuple[float | None, ...]:
    return tuple(x if math.isfinite(x) else None for x in losses)
