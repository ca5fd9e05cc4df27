"""One trial in which the model and the loader each run alone: what faster loading can gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpurun.knobs.api import Skip
from gpurun.knobs.loading.loader_need import data_wait
from gpurun.records.facts import Facts
from gpurun.records.spec import StopRule
from gpurun.records.tuning import Ceilings
from gpurun.tuner.trial_length import MEASURED_STEPS, SHORTEST_SECONDS
from gpurun.tuner.tuning_trial import Trial, TrialRequest

PURPOSE = "ceilings"


def not_needed(facts: Facts) -> str:
    """Why the ceilings would tell nothing of a script; "" where they would."""
    if facts.result.ranks > 1:
        return "the script runs in several ranks"
    wait = data_wait(facts)
    if isinstance(wait, Skip):
        return wait.reason
    return "" if wait.noticeable else "the step does not wait for data"


def ceilings_of(
    facts: Facts, rule: StopRule, launch: Callable[[TrialRequest], Trial] | None
) -> Ceilings:
    """The ceilings of a script, or why there are none.

    `rule`: of the other trials; this one is shorter, and audits nothing. `launch`: None where the
    budget has no room for it.
    """
    script = facts.result.samples_per_second
    why = not_needed(facts)
    if launch is None or why:
        return Ceilings(None, None, script, None, why or "the budget has no room for it")
    short = replace(
        rule,
        audit_steps=0,
        min_steps=rule.warmup_steps + MEASURED_STEPS,
        min_seconds=SHORTEST_SECONDS,
    )
    trial = launch(TrialRequest(PURPOSE, facts.current, short, ceilings=True))
    seen = None if trial.log is None else trial.log.ceilings
    if seen is None:
        why = trial.record.reason or "the script ended before it was seen"
        return Ceilings(None, None, script, None, why)
    model = trial.result.samples_per_second if trial.result is not None and seen.resident else None
    reasons = [] if seen.resident else ["no batch could be kept"]
    reasons += [seen.detail] if seen.detail else []
    bound = max(model / script, 1.0) if model and script else None
    return Ceilings(seen.loader_samples_per_second, model, script, bound, "; ".join(reasons))
