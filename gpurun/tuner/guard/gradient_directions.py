"""Does every weight's first gradient point where it did? A check of the loss guard.

All parameters together hide a mistake in some of them: an attention that looks ahead turns the
gradients of its own weights, and the whole gradient hardly at all.
"""

from __future__ import annotations

import math
import re

from gpurun.tuner.guard.training_checks import (
    SAME_GRADIENT,
    STEADY_GRADIENT,
    cosine,
    gradients_by_name,
    sizeable,
    starts_alike,
    turned,
)
from gpurun.tuner.guard.training_evidence import Comparison, RoundingReason

ENOUGH = 32
"""Fewer sampled values than this do not tell a direction."""
SLACK = 0.5
"""Factor on the cosine that other masks of dropout are expected to leave: with few samples in a
batch they also turn what comes back from the loss (0.42 was seen at p = 0.2)."""
DROPOUT = re.compile(r"Dropout\w*\(p=([0-9.e-]+).*, training")


def directions(case: Comparison) -> str | None:
    """The first gradient of each weight points where the baseline's does."""
    needed = _needed(case)
    if needed is None or case.partner is None or not case.candidate.audits:
        return None
    ours, theirs = (gradients_by_name(t.audits[0]) for t in (case.candidate, case.partner))
    sound = sizeable(case.partner.audits[0].gradient_norms).keys() - turned(case, STEADY_GRADIENT)
    for name in sorted(ours.keys() & theirs.keys() & sound):
        if len(theirs[name]) < ENOUGH or "bias" in name:
            continue
        alike = cosine(ours[name], theirs[name])
        if alike is not None and alike < needed:
            said = f"the gradients of {name} point elsewhere in step 1 (cosine {alike:.2f})"
            return RoundingReason(said)
    return None


def _needed(case: Comparison) -> float | None:
    """The least cosine of a sound change; None where nothing is known of it.

    If the whole gradient hardly turns, dropout drew the same masks. Another mask of a dropout by
    `p` leaves the gradients behind it a cosine of `1 - p`. Masks add up, at worst one behind the
    other. `p` is unknown for a dropout that is no module.
    """
    if case.partner is None or not case.partner.audits or not case.same_data:
        return None
    if case.same_draws or starts_alike(case):
        return SAME_GRADIENT
    modules = case.partner.audits[0].modules.values()
    kept = [1 - float(found[1]) for found in map(DROPOUT.search, modules) if found]
    return min(SAME_GRADIENT, SLACK * math.prod(kept)) if kept else None
