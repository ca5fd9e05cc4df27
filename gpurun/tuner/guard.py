"""The loss guard: does training under a candidate still go the same way?

A short loss curve alone would miss a frozen EMA copy or half a data set, so the guard compares what
the trials' audited first steps show: samples by index and content, inputs, gradients, updates and
hyper-parameters, and then the whole loss curve against the noise of the baseline's own repeats.
Every check is a pure function from evidence to a reason for rejection, or None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

from gpurun.knobs.api import Effect
from gpurun.records.tuning import GuardVerdict, LossCurves
from gpurun.stats import median
from gpurun.tuner import content
from gpurun.tuner.evidence import Evidence

LOSS_TOLERANCE = 0.02
"""A loss curve may always deviate this much (fraction), whatever the noise."""
NORM_TOLERANCE = 0.25
"""So may the mean norm of gradients and updates; doubling a learning rate is 1.0."""
NOISE_WIDENING = 3.0
"""Norms of repeats spread by chance: this many times their spread is tolerated."""
VANISHED = 1e-3
"""A gradient this small against the baseline's has been dropped."""
CHUNKS = 4
"""The curve is compared in so many parts, each by its mean."""
IMPLEMENTATION_KEYS = frozenset({"fused", "foreach", "capturable", "differentiable", "initial_lr"})
"""Optimizer settings that choose kernels, not mathematics."""

Check = Callable[[Sequence[Evidence], Evidence], str | None]


def judge(
    baselines: Sequence[Evidence], candidates: Sequence[Evidence], effect: Effect
) -> GuardVerdict:
    """Compare candidate trials with baseline trials; any one candidate trial that fails rejects.

    A `training` change may alter samples, steps and loss by design: it must only stay finite and
    not run away.
    """
    checks = TRAINING_CHECKS if effect is Effect.TRAINING else CHECKS
    reasons = []
    for check in checks:
        found = (check(baselines, candidate) for candidate in candidates)
        reason = next((r for r in found if r is not None), None)
        if reason is not None:
            reasons.append(reason)
    deviation, noise = loss_deviation(baselines, candidates), loss_noise(baselines)
    if effect is not Effect.TRAINING and deviation is not None:
        bound = max(LOSS_TOLERANCE, noise or 0.0)
        if deviation > bound:
            reasons.append(f"the loss deviates by {deviation:.1%} (allowed {bound:.1%})")
    rejected = bool(reasons)
    return GuardVerdict(
        accepted=not rejected,
        loss_deviation=None if effect is Effect.TRAINING else deviation,
        noise=noise,
        reasons=tuple(reasons),
        curves=_curves(baselines, candidates) if rejected else None,
    )


def loss_deviation(baselines: Sequence[Evidence], candidates: Sequence[Evidence]) -> float | None:
    """Median over candidates of the deviation from the baseline trial of the same seed."""
    found = []
    for candidate in candidates:
        partners = [b for b in baselines if b.seed == candidate.seed] or list(baselines)
        apart = [curve_deviation(b.losses, candidate.losses) for b in partners]
        known = [d for d in apart if d is not None]
        if known:
            found.append(min(known))
    return median(found) if found else None


def loss_noise(baselines: Sequence[Evidence]) -> float | None:
    """The widest deviation between two repeats of the baseline (other seeds included)."""
    apart = [curve_deviation(a.losses, b.losses) for a, b in combinations(baselines, 2)]
    known = [d for d in apart if d is not None]
    return max(known) if known else None


def curve_deviation(reference: Sequence[float], other: Sequence[float]) -> float | None:
    """The largest relative difference of chunk means over the steps that both curves have."""
    both = [
        (a, b)
        for a, b in zip(reference, other, strict=False)
        if math.isfinite(a) and math.isfinite(b)
    ]
    if not both:
        return None
    size = max(1, math.ceil(len(both) / CHUNKS))
    parts = [both[i : i + size] for i in range(0, len(both), size)]
    means = [
        (math.fsum(a for a, _ in p) / len(p), math.fsum(b for _, b in p) / len(p)) for p in parts
    ]
    floor = 0.05 * max(abs(a) for a, _ in means)
    return max(abs(b - a) / (max(abs(a), floor) or 1.0) for a, b in means)


# -- the checks ------------------------------------------------------------------------------------


def _finite(baselines: Sequence[Evidence], candidate: Evidence) -> str | None:
    length = min((len(b.losses) for b in baselines if b.finite_losses), default=0)
    if not length:
        return None
    sound = all(math.isfinite(x) for b in baselines for x in b.losses[:length])
    broken = next((i for i, x in enumerate(candidate.losses) if not math.isfinite(x)), None)
    if broken is not None and (sound or (broken < length and _all_finite_at(baselines, broken))):
        return f"the loss is not finite at step {broken + 1}"
    return None


def _all_finite_at(baselines: Sequence[Evidence], step: int) -> bool:
    return all(step >= len(b.losses) or math.isfinite(b.losses[step]) for b in baselines)


def _runaway(baselines: Sequence[Evidence], candidate: Evidence) -> str | None:
    start = [b.losses[0] for b in baselines if b.losses and math.isfinite(b.losses[0])]
    tail = [x for x in candidate.losses[-5:] if math.isfinite(x)]
    highest = max((abs(x) for b in baselines for x in b.losses if math.isfinite(x)), default=0.0)
    if start and tail and median(tail) > 2 * max(highest, max(start)):
        return f"the loss runs away ({median(tail):.3g} after starting at {max(start):.3g})"
    return None


def _hyperparameters(baselines: Sequence[Evidence], candidate: Evidence) -> str | None:
    reference = _same_seed(baselines, candidate)
    if reference is None:
        return None
    for ours, theirs in zip(candidate.audits, reference.audits, strict=False):
        for group, (a, b) in enumerate(
            zip(ours.hyperparameters, theirs.hyperparameters, strict=False)
        ):
            for key in sorted((set(a) & set(b)) - IMPLEMENTATION_KEYS):
                if not _equal(a[key], b[key]):
                    return (
                        f"the optimizer's {key} is {a[key]} instead of {b[key]} "
                        f"(group {group}, step {ours.step})"
                    )
    return None


def _equal(a: object, b: object) -> bool:
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)
    return a == b


def _microbatches(baselines: Sequence[Evidence], candidate: Evidence) -> str | None:
    """Backward passes a step: a skipped step leaves two of them in one."""
    reference = _same_seed(baselines, candidate)
    if reference is None:
        return None
    stable = all(
        b.microbatches[:n] == reference.microbatches[:n]
        for b in baselines
        for n in [min(len(b.microbatches), len(reference.microbatches))]
    )
    pairs = zip(candidate.microbatches, reference.microbatches, strict=False)
    wrong = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if stable and wrong is not None:
        a, b = candidate.microbatches[wrong], reference.microbatches[wrong]
        return f"{a} backward passes instead of {b} before optimizer step {wrong + 1}"
    return None


def _gradients(baselines: Sequence[Evidence], candidate: Evidence) -> str | None:
    reference = _same_seed(baselines, candidate)
    if reference is None:
        return None
    for ours, theirs in zip(candidate.audits, reference.audits, strict=False):
        largest = max((n for n in theirs.gradient_norms.values() if n), default=0.0)
        for name, norm in theirs.gradient_norms.items():
            if norm is None or norm < 1e-4 * largest or name not in ours.gradient_norms:
                continue
            if (ours.gradient_norms[name] or 0.0) < VANISHED * norm:
                return f"parameter {name} gets no gradient in step {ours.step}"
    return _ratio_reason(
        "gradients", [_gradient_scale(b) for b in baselines], _gradient_scale(candidate)
    )


def _gradient_scale(trial: Evidence) -> float | None:
    norms = [
        math.sqrt(sum((n or 0.0) ** 2 for n in a.gradient_norms.values())) for a in trial.audits
    ]
    return _log_mean(norms)


def _updates(baselines: Sequence[Evidence], candidate: Evidence) -> str | None:
    idle = next((a.step for a in candidate.audits if a.update_norm == 0), None)
    if idle is not None and all(a.update_norm != 0 for b in baselines for a in b.audits):
        return f"step {idle} changed no parameter"
    return _ratio_reason(
        "parameter updates",
        [_log_mean([a.update_norm or 0.0 for a in b.audits]) for b in baselines],
        _log_mean([a.update_norm or 0.0 for a in candidate.audits]),
    )


def _log_mean(values: Sequence[float]) -> float | None:
    logs = [math.log(v) for v in values if v > 0 and math.isfinite(v)]
    return math.fsum(logs) / len(logs) if logs else None


def _ratio_reason(what: str, known: Sequence[float | None], ours: float | None) -> str | None:
    reference = [x for x in known if x is not None]
    if not reference or ours is None:
        return None
    spread = max(reference) - min(reference)
    bound = max(math.log1p(NORM_TOLERANCE), NOISE_WIDENING * spread)
    apart = ours - median(reference)
    if abs(apart) > bound:
        return f"{what} are {math.exp(apart):.2f} times the baseline's"
    return None


def _side_modules(baselines: Sequence[Evidence], candidate: Evidence) -> str | None:
    """A copy of the model that moves in the baseline (an EMA) must move in the candidate."""
    moving = [set(_moved(b)) for b in baselines]
    must = set.intersection(*moving) if moving else set()
    seen = {name for a in candidate.audits for name in a.side_update_norms}
    frozen = sorted((must & seen) - set(_moved(candidate)))
    if frozen:
        return f"the model's copy ({frozen[0]}) no longer follows the model"
    return None


def _moved(trial: Evidence) -> dict[str, float]:
    total: dict[str, float] = {}
    for audit in trial.audits:
        for name, norm in audit.side_update_norms.items():
            total[name] = total.get(name, 0.0) + norm
    return {name: norm for name, norm in total.items() if norm > 0}


def _same_seed(baselines: Sequence[Evidence], candidate: Evidence) -> Evidence | None:
    return next((b for b in baselines if b.seed == candidate.seed), None)


CHECKS: tuple[Check, ...] = (
    _finite,
    content.order,
    content.samples,
    content.inputs,
    _hyperparameters,
    _microbatches,
    _gradients,
    _updates,
    _side_modules,
)
TRAINING_CHECKS: tuple[Check, ...] = (_finite, _runaway, content.samples)


def _curves(baselines: Sequence[Evidence], candidates: Sequence[Evidence]) -> LossCurves | None:
    if not baselines or not candidates:
        return None
    worst = max(
        candidates, key=lambda c: loss_deviation(baselines, [c]) or 0.0, default=candidates[0]
    )
    reference = _same_seed(baselines, worst) or baselines[0]
    return LossCurves(baseline=_plain(reference.losses), candidate=_plain(worst.losses))


def _plain(losses: Sequence[float]) -> tuple[float | None, ...]:
    return tuple(x if math.isfinite(x) else None for x in losses)
