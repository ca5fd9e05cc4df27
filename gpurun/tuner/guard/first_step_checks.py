"""Does training begin as it did? The loss guard's checks of the first step's loss and gradients.

All parameters together hide a mistake in some of them: an attention that looks ahead turns the
gradients of its own weights, and the whole gradient hardly at all. So each weight's gradient is
compared as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import islice, pairwise

from gpurun.knobs.api import Effect
from gpurun.records.events import AuditEvent
from gpurun.stats.descriptive import median
from gpurun.tuner.guard.training_evidence import Comparison, RoundingReason, sizeable

FIRST_LOSS = 0.03
"""Rounding may move the loss of the very first step this much (bfloat16 moves it 0.4 %)."""
SAME_GRADIENT = 0.8
"""Cosine between the gradients of two first steps that differ in rounding alone."""
LIKE_GRADIENT = 0.15
"""And of two that differ in random draws (dropout, augmentation) on the same samples."""
BETWEEN_BATCHES = 0.5
"""Factor on the cosine between the gradients of two batches: a single one scatters."""
LEAST_LIKE = 0.05
"""Below this they have nothing in common, and mixed-up labels might look so."""
SAME_DRAWS = 0.99
"""Nor do two that differ in random draws come this close: 0.84 with a dropout of 0.2."""
STEADY_GRADIENT = 0.95
"""And of a parameter's, where rounding as half precision does not turn them."""
ENOUGH = 32
"""Fewer sampled values than this do not tell a direction."""
SLACK = 0.5
"""Factor on the cosine that other masks of dropout are expected to leave: with few samples in a
batch they also turn what comes back from the loss (0.42 was seen at p = 0.2)."""
DROPOUT = re.compile(r"Dropout\w*\(p=([0-9.e-]+).*, training")


def first_step(case: Comparison) -> str | None:
    """Under one seed the first step starts from the same parameters, with the same samples."""
    if case.partner is None or not case.candidate.audits or not case.partner.audits:
        return None
    ours, theirs = case.candidate.audits[0], case.partner.audits[0]
    if not _reproducible(case):
        return None
    if case.same_draws and ours.loss is not None and theirs.loss is not None:
        apart = abs(ours.loss - theirs.loss)
        if apart > FIRST_LOSS * max(abs(theirs.loss), 0.1 * _typical_loss(case)):
            return f"the first loss is {ours.loss:.4g} instead of {theirs.loss:.4g}"
    needed = SAME_GRADIENT if case.same_draws else _like(case)
    for mine, other in case.steps[:1]:
        alike = cosine(mine.gradient_values, other.gradient_values)
        if alike is None or alike >= needed:
            continue
        steady = _steady_places(case)
        if steady is not None and len(mine.gradient_values) == len(other.gradient_values):
            mine_there, theirs_there = (
                [x.gradient_values[place] for place in steady] for x in (mine, other)
            )
            alike = cosine(mine_there, theirs_there)
        if alike is not None and alike < needed:
            said = f"the gradients of step {mine.step} point elsewhere (cosine {alike:.2f})"
            return RoundingReason(said)
    return None


def _like(case: Comparison) -> float:
    """The least cosine of first gradients that differ in random draws.

    Where the samples themselves were drawn anew (augmented, or with other partners), two draws of
    one batch are at least as alike as two batches. The partner's neighbouring steps show how alike
    these are.
    """
    if not case.other_draws or case.partner is None:
        return LIKE_GRADIENT
    found = (cosine(a.gradient_values, b.gradient_values) for a, b in pairwise(case.partner.audits))
    known = [value for value in found if value is not None]
    if not known:
        return LIKE_GRADIENT
    return min(LIKE_GRADIENT, max(LEAST_LIKE, BETWEEN_BATCHES * median(known)))


def starts_alike(case: Comparison) -> bool:
    """True if the first gradients differ so little that no other random numbers went into them."""
    cosines = [cosine(a.gradient_values, b.gradient_values) for a, b in case.steps[:1]]
    return all(c is not None and c >= SAME_DRAWS for c in cosines) and bool(cosines)


def _steady_places(case: Comparison) -> list[int] | None:
    """The first step's gradient values that rounding alone does not turn; None: unknown.

    If gradients explode on their way back (a deep network before its first step), any rounding
    turns the gradients of early layers. Then only those near the loss can be compared.
    """
    rounded = case.rounded
    if rounded is None or case.effect is not Effect.NUMERICS or not rounded.audits:
        return None
    plain = next((b for b in case.baselines if b.seed == rounded.seed and b.audits), None)
    counts = rounded.audits[0].gradient_counts
    if plain is None or not counts or plain.audits[0].gradient_counts != counts:
        return None
    ours, theirs = rounded.audits[0].gradient_values, plain.audits[0].gradient_values
    places: list[int] = []
    end = 0
    for count in counts:
        begin, end = end, end + count
        alike = cosine(ours[begin:end], theirs[begin:end])
        if alike is not None and alike >= STEADY_GRADIENT:
            places += range(begin, end)
    return places


def _reproducible(case: Comparison) -> bool:
    """The baseline's own repeats under this seed agree on their first step."""
    first = [b.audits[0] for b in case.partners if b.audits]
    cosines = [cosine(a.gradient_values, first[0].gradient_values) for a in first[1:]]
    return all(c is None or c > SAME_GRADIENT for c in cosines)


def _typical_loss(case: Comparison) -> float:
    known = [abs(x) for b in case.baselines for x in b.losses if math.isfinite(x)]
    return math.fsum(known) / len(known) if known else 0.0


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


def turned(case: Comparison, least: float) -> set[str]:
    """The parameters whose first gradient repeats, or rounding alone, turn below this cosine."""
    if case.partner is None or not case.partner.audits:
        return set()
    theirs = gradients_by_name(case.partner.audits[0])
    found = set()
    for other in (*case.partners[1:], *([case.rounded] if case.rounded else [])):
        if other.seed == case.partner.seed and other.audits:
            ours = gradients_by_name(other.audits[0])
            cosines = {n: cosine(ours[n], theirs[n]) for n in ours.keys() & theirs.keys()}
            found |= {n for n, c in cosines.items() if c is not None and c < least}
    return found


def gradients_by_name(audit: AuditEvent) -> dict[str, tuple[float, ...]]:
    """The sampled values of each parameter's gradient; empty where they cannot be told apart."""
    names = sorted(n for n, x in audit.gradient_norms.items() if x is not None)
    counts = audit.gradient_counts
    if len(names) != len(counts):  # some are sparse
        return {}
    values = iter(audit.gradient_values)
    return {n: tuple(islice(values, count)) for n, count in zip(names, counts, strict=True)}


def cosine(a: Sequence[float], b: Sequence[float]) -> float | None:
    """The cosine of the angle between two lists of numbers; None if one is empty, or zero."""
    if len(a) != len(b) or not a:
        return None
    size = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    if not math.isfinite(size) or size == 0:
        return None
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / size
