"""The guard: does a script under a candidate still train, or infer, the same way?

A short loss curve alone would miss a frozen EMA copy or half a data set, so the guard compares what
the trials' audited first steps show: samples by index and content, inputs, gradients, updates and
settings, and then the whole loss curve against the noise of the baseline's own repeats. Every check
is a pure function from evidence to a reason for rejection, or None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gpurun.knobs.api import Effect
from gpurun.records.tuning import GuardVerdict
from gpurun.tuner.guard import first_step_checks, loss_checks, sample_checks, training_checks
from gpurun.tuner.guard.output_checks import compare_outputs
from gpurun.tuner.guard.training_evidence import (
    PIPELINE_ONLY,
    Comparison,
    DrawsReason,
    Evidence,
    RoundingReason,
    SamplesReason,
)

Check = Callable[[Comparison], "str | None"]

MOST_BY_DRAWS = 0.1
"""A loss further off is not put down to random draws, however far seeds are apart: other seeds also
begin with other weights, and a fault of the loader may hide there."""


def judge_training(
    baselines: Sequence[Evidence], candidates: Sequence[Evidence], effect: Effect
) -> GuardVerdict:
    """Compare candidate trials with baseline trials; any one candidate trial that fails rejects.

    A `training` change may alter samples, steps and loss by design: it must only stay finite, not
    run away, and read the same samples. Baseline trials that only round tell what rounding
    alone does.
    """
    training = effect is Effect.TRAINING
    forward_only = bool(candidates) and all(c.forward_only for c in candidates)
    draws = [b for b in baselines if b.rounded]
    rounded = draws[0] if draws else None
    baselines = [b for b in baselines if not b.rounded]
    cases = [Comparison(c, baselines, effect, rounded) for c in candidates]
    reasons = _failed_checks(cases, training)
    fixed = sample_checks.transforms(baselines, candidates)
    if fixed is not None:
        reasons.append(fixed)
    outputs = compare_outputs(baselines, candidates, effect, rounded)
    reasons += outputs.reasons
    if forward_only and effect is Effect.NUMERICS and not (outputs.compared or outputs.reasons):
        reasons.append(f"outputs not compared: {outputs.why_not}; {PIPELINE_ONLY}")
    apart = None
    if not training:
        apart, too_far = loss_checks.compare_curves(baselines, candidates, effect, draws)
        if too_far is not None:
            drawn = effect is Effect.PIPELINE and any(c.other_draws for c in cases)
            reasons.append(DrawsReason(too_far) if drawn else too_far)
    compared = {
        "samples": _both(baselines, candidates, _shows_samples),
        "gradients": not training and _both(baselines, candidates, _shows_gradients),
        "losses": apart is not None,
        "outputs": outputs.compared,
    }
    return GuardVerdict(
        accepted=not reasons,
        loss_deviation=None if apart is None else apart.size,
        noise=None if apart is None else apart.noise,
        reasons=tuple(reasons),
        curves=None if forward_only else loss_checks.curves(baselines, candidates),
        output_deviation=outputs.deviation,
        output_agreement=outputs.agreement,
        outputs_not_compared=outputs.why_not if forward_only and not outputs.compared else None,
        compared=tuple(name for name, seen in compared.items() if seen),
        forward_only=forward_only,
    )


def _failed_checks(cases: Sequence[Comparison], training: bool) -> list[str]:
    """One reason for each check that any candidate trial fails."""
    reasons = []
    for check in TRAINING_CHECKS if training else CHECKS:
        reason = next((r for r in map(check, cases) if r is not None), None)
        if reason is not None:
            reasons.append(SamplesReason(reason) if check in SAMPLE_CHECKS else reason)
    return reasons


def may_be_rounding(verdict: GuardVerdict, effect: Effect) -> bool:
    """True if all that speaks against a candidate is what rounding does to some models."""
    asked = effect is Effect.NUMERICS and not verdict.accepted
    return asked and all(isinstance(reason, RoundingReason) for reason in verdict.reasons)


def may_be_draws(verdict: GuardVerdict) -> bool:
    """True if all that speaks against a change of the pipeline is a loss that other random draws
    may explain: the data set's random parts were drawn anew, and the loss is not far off."""
    drawn = bool(verdict.reasons) and all(isinstance(x, DrawsReason) for x in verdict.reasons)
    return drawn and verdict.loss_deviation is not None and verdict.loss_deviation <= MOST_BY_DRAWS


def shows_other_samples(verdict: GuardVerdict) -> bool:
    """True if other samples reach the model, or in another order."""
    return any(isinstance(reason, SamplesReason) for reason in verdict.reasons)


def _both(
    baselines: Sequence[Evidence],
    candidates: Sequence[Evidence],
    shows: Callable[[Evidence], bool],
) -> bool:
    return any(map(shows, baselines)) and bool(candidates) and all(map(shows, candidates))


def _shows_samples(trial: Evidence) -> bool:
    return any(s.order for s in trial.samples)


def _shows_gradients(trial: Evidence) -> bool:
    norms = (norm for audit in trial.audits for norm in audit.gradient_norms.values())
    return any(norm is not None and math.isfinite(norm) for norm in norms)


SAMPLE_CHECKS: tuple[Check, ...] = (
    sample_checks.data_set,
    sample_checks.order,
    sample_checks.samples,
    sample_checks.distinct,
    sample_checks.likeness,
    sample_checks.fed,
    sample_checks.inputs,
)
CHECKS: tuple[Check, ...] = (
    loss_checks.finite,
    loss_checks.has_loss,
    loss_checks.to_compare_with,
    *SAMPLE_CHECKS,
    training_checks.optimizers,
    training_checks.hyperparameters,
    training_checks.rates,
    training_checks.microbatches,
    training_checks.modules,
    training_checks.draws,
    first_step_checks.first_step,
    first_step_checks.directions,
    training_checks.gradients,
    training_checks.updates,
    training_checks.side_modules,
)
TRAINING_CHECKS: tuple[Check, ...] = (
    loss_checks.finite,
    loss_checks.has_loss,
    loss_checks.runaway,
    sample_checks.samples,
)
