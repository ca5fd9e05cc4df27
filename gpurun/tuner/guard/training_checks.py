"""Is the model optimized in the same way? Checks of the loss guard on audited steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from gpurun.knobs.api import Effect
from gpurun.records.events import BUFFERS, AuditEvent
from gpurun.stats.descriptive import median
from gpurun.stats.loss_deviation import standard_error
from gpurun.tuner.guard.first_step_checks import turned
from gpurun.tuner.guard.training_evidence import (
    UNKNOWN_ROUNDING,
    Comparison,
    Evidence,
    Norms,
    RoundingReason,
    sizeable,
)

NORM_TOLERANCE = 1.25
"""Factor by which the norm of all gradients, or updates, may always be off."""
PARAMETER_TOLERANCE = 1.7
"""And the norm of one parameter's."""
NORM_CAP = 1.9
"""No noise excuses more: doubling a learning rate is 2."""
SIGMAS = 4.0
"""Steps scatter by chance: so many standard errors of their mean are tolerated."""
DRAWN_TOLERANCE, DRAWN_SIGMAS, DRAWN_CAP = 1.7, 8.0, 4.0
"""The same for all gradients, or updates, where the samples' random parts were drawn anew: steps
then depend on one another, and a hot training runs apart. Of simulated pairs that differ in draws
alone none of seven trainings went further, and one in 40 of the hottest."""
DRAWN_PARAMETER_TOLERANCE = 10.0
"""And for one parameter there. None of these pairs went further; one in ten went beyond 1.7."""
NOISE = 1e-5
"""Gradients whose norm is this small against the median of all norms are made of rounding alone."""
TURNED = 0.5
"""And so are those that repeats, or rounding alone, turn so far (cosine)."""
VANISHED = 1e-3
"""A gradient this small against the baseline's has been dropped."""
IMPLEMENTATION_KEYS = frozenset({"fused", "foreach", "capturable", "differentiable", "initial_lr"})
"""Optimizer settings that choose kernels, not mathematics."""


def hyperparameters(case: Comparison) -> str | None:
    """Learning rates, decay, momentum and the like, by group, in every audited step."""
    if case.partner is None:
        return None
    for ours, theirs in case.steps:
        if _settings(ours) == _settings(theirs):
            continue
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


def _settings(audit: AuditEvent) -> Counter[str]:
    """The groups' settings, whatever their order."""
    return Counter(
        repr(sorted((k, _rounded(v)) for k, v in g.items() if k not in IMPLEMENTATION_KEYS))
        for g in audit.hyperparameters
    )


def _rounded(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _equal(a: object, b: object) -> bool:
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)
    return a == b


def rates(case: Comparison) -> str | None:
    """The learning rates of all steps that both trials took, whatever the order of groups.

    A schedule may follow the loss; so only what the baseline's own repeats agree on is compared.
    """
    steps = min((len(t.losses) for t in (case.candidate, *case.partners)), default=0)
    if not case.partners or not case.candidate.rates:
        return None
    ours = _by_step(case.candidate, steps)
    theirs = [_by_step(p, steps) for p in case.partners]
    for step, mine in enumerate(ours):
        other = {t[step] for t in theirs}
        if len(other) > 1:
            return None
        if mine not in other:
            return f"the learning rate is {mine} instead of {other.pop()} in step {step + 1}"
    return None


def _by_step(trial: Evidence, steps: int) -> list[str]:
    changes = iter([*trial.rates, (steps + 1, ())])
    now, (first, following) = "", next(changes)
    found = []
    for step in range(1, steps + 1):
        while step >= first:
            now = ", ".join(sorted("?" if x is None else f"{x:.5g}" for x in following))
            first, following = next(changes)
        found.append(now)
    return found


def optimizers(case: Comparison) -> str | None:
    """The same kinds of optimizer, over as many parameters."""
    if case.partner is None:
        return None
    for ours, theirs in zip(case.candidate.optimizers, case.partner.optimizers, strict=False):
        if ours.class_name != theirs.class_name:
            return f"the optimizer is {ours.class_name} instead of {theirs.class_name}"
        if ours.parameters != theirs.parameters:
            return f"{ours.parameters} parameters are optimized instead of {theirs.parameters}"
    return None


def microbatches(case: Comparison) -> str | None:
    """Backward passes a step: a skipped step leaves two of them in one."""
    if case.partner is None:
        return None
    reference = case.partner.microbatches
    stable = all(
        b.microbatches[:n] == reference[:n]
        for b in case.baselines
        for n in [min(len(b.microbatches), len(reference))]
    )
    pairs = zip(case.candidate.microbatches, reference, strict=False)
    wrong = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if stable and wrong is not None:
        a, b = case.candidate.microbatches[wrong], reference[wrong]
        return f"{a} backward passes instead of {b} before optimizer step {wrong + 1}"
    return None


def modules(case: Comparison) -> str | None:
    """Settings and mode of each module whose class is still the same (a knob may replace some)."""
    for ours, theirs in case.steps:
        for name, was in theirs.modules.items():
            now = ours.modules.get(name, was)
            if now != was and now.split("(")[0] == was.split("(")[0]:
                return f"module {name} is {now} instead of {was}"
    return None


def draws(case: Comparison) -> str | None:
    """A model that draws random numbers (dropout) must go on drawing them."""
    theirs = [a.draws for b in case.baselines for a in b.audits]
    ours = [a.draws for a in case.candidate.audits]
    if theirs and all(theirs) and ours and not any(ours):
        return "the model no longer draws random numbers (dropout)"
    return None


def gradients(case: Comparison) -> str | None:
    """Every parameter gets its gradient, finite and of the usual size."""
    for ours, theirs in case.steps:
        for name, norm in sizeable(theirs.gradient_norms).items():
            if name not in ours.gradient_norms:
                return f"parameter {name} is no longer optimized"
            mine = ours.gradient_norms[name] or 0.0
            if not math.isfinite(mine):
                return f"the gradient of {name} is not finite in step {ours.step}"
            if mine < VANISHED * norm:
                return f"parameter {name} gets no gradient in step {ours.step}"
    return _sizes(case, "gradients", lambda a: a.gradient_norms, _turned(case))


def updates(case: Comparison) -> str | None:
    """Every parameter moves, and as far as it used to.

    One whose true gradient is zero (a convolution's bias before a normalisation) says nothing: Adam
    makes whole steps of the rounding that is left of it.
    """
    vanishing = _vanishing(case)
    moving = {n for ours, _ in case.steps for n, d in ours.update_norms.items() if d}

    def moved(audit: AuditEvent) -> dict[str, float]:
        return {n: d for n, d in audit.update_norms.items() if n not in vanishing}

    for ours, theirs in case.steps:
        mine, other = moved(ours), moved(theirs)
        by_chance = _far_below(theirs.update_norms)  # so small that rounding may swallow it
        still = [n for n, d in other.items() if n not in by_chance and d > 0 and not mine.get(n, d)]
        if still and len(still) == sum(d > 0 for d in other.values()):
            return f"step {ours.step} changed no parameter"
        if case.effect is Effect.NUMERICS:
            swallowed = moving.intersection(theirs.updates_near_zero)
            still = [n for n in still if n not in swallowed]
        if still:
            return f"step {ours.step} left parameter {still[0]} as it was"
    return _sizes(case, "updates", moved, _turned(case))


def _turned(case: Comparison) -> set[str]:
    return turned(case, TURNED)


def _vanishing(case: Comparison) -> set[str]:
    """The parameters whose gradient is next to nothing in every audited step of the baseline."""
    audits = case.partner.audits if case.partner is not None else ()
    small = [_far_below(a.gradient_norms) for a in audits]
    return set.intersection(*small) if small else set()


def _far_below(norms: Norms) -> set[str]:
    known = {n: x for n, x in norms.items() if x is not None and math.isfinite(x)}
    typical = median([x for x in known.values() if x > 0] or [0.0])
    return {n for n, x in known.items() if x <= NOISE * typical}


def side_modules(case: Comparison) -> str | None:
    """Modules that change beside the optimizer (an EMA copy, a normalisation's statistics) must go
    on changing."""
    mine = _moved(case.candidate)
    theirs = [_moved(b) for b in case.baselines]
    for name in sorted(set.intersection(*map(set, theirs)) if theirs else ()):
        if min(t[name] for t in theirs) <= 0 or name not in mine:
            continue
        if mine[name] == 0:
            return f"{name} no longer follows the model"
        ratio = mine[name] / math.exp(sum(math.log(t[name]) for t in theirs) / len(theirs))
        spread = max(t[name] for t in theirs) / min(t[name] for t in theirs)
        bound = (DRAWN_CAP if case.other_draws else PARAMETER_TOLERANCE) * spread
        if not 1 / bound < ratio < bound:
            return f"{name} moves {ratio:.2g} times as far"
    return None


def _moved(trial: Evidence) -> dict[str, float]:
    """How far each moved in all audited steps.

    Copies have numbers, in whatever order they lie in memory: another process finds them in another
    one. So they are numbered anew, the one that moved furthest first.
    """
    total: dict[str, float] = {}
    copies: dict[str, list[float]] = {}
    for audit in trial.audits:
        for name, size in audit.side_update_norms.items():
            total[name] = total.get(name, 0.0) + (size if math.isfinite(size) else 0.0)
    for name in [n for n in total if not n.startswith(BUFFERS)]:
        copies.setdefault(name.rpartition(" ")[0], []).append(total.pop(name))
    for kind, sizes in copies.items():
        total |= {f"{kind} {n}": size for n, size in enumerate(sorted(sizes, reverse=True))}
    return total


def _sizes(
    case: Comparison,
    what: str,
    of: Callable[[AuditEvent], Norms],
    but: Collection[str] = (),
) -> str | None:
    """Compare norms step by step with the partner's: all together, then each parameter's.

    Parameters in `but` are not compared by themselves.
    """
    drawn = case.other_draws
    steps = [(of(a), of(b)) for a, b in case.steps]
    whole = [_log_ratio(_total(a), _total(b)) for a, b in steps]
    off = (
        _off(whole, DRAWN_TOLERANCE, DRAWN_SIGMAS, DRAWN_CAP)
        if drawn
        else _off(whole, NORM_TOLERANCE)
    )
    if off is not None:
        return f"{what} are {off:.2f} times the baseline's"
    tolerance = DRAWN_PARAMETER_TOLERANCE if drawn else PARAMETER_TOLERANCE
    names = set(sizeable(steps[0][1])) if steps else set()
    for _, theirs in steps:
        names &= set(sizeable(theirs))
    for name in sorted(names.difference(but)):
        ratios = [_log_ratio(a.get(name), b.get(name)) for a, b in steps]
        off = _off(ratios, tolerance)
        if off is not None:
            unknown = case.effect is Effect.NUMERICS and case.rounded is None
            said = f"{what} of {name} are {off:.2f} times the baseline's"
            return RoundingReason(f"{said} ({UNKNOWN_ROUNDING})") if unknown else said
    return None


def _total(norms: Norms) -> float:
    return math.sqrt(math.fsum((x or 0.0) ** 2 for x in norms.values()))


def _log_ratio(ours: float | None, theirs: float | None) -> float | None:
    if not ours or not theirs or not math.isfinite(ours) or not math.isfinite(theirs):
        return None
    return math.log(ours / theirs)


def _off(
    ratios: Sequence[float | None],
    tolerance: float,
    sigmas: float = SIGMAS,
    cap: float = NORM_CAP,
) -> float | None:
    """The mean factor, if it is beyond what the scatter of the steps explains."""
    known = [r for r in ratios if r is not None]
    if len(known) < 3:
        return None
    mean = math.fsum(known) / len(known)
    bound = max(math.log(tolerance), sigmas * standard_error(known))
    bound = min(bound, max(math.log(cap), math.log(tolerance)))
    return math.exp(mean) if abs(mean) > bound else None
