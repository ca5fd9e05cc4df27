"""One trial in which the model and the loader each run alone: what faster loading can gain."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace

from gpurun.knobs.api import Skip
from gpurun.knobs.loading.loader_need import data_wait
from gpurun.measure.run_events import ProcessLog
from gpurun.measure.step_table import UNKNOWN
from gpurun.measure.training_clock import step_clock, sum_known
from gpurun.records.events import StepRow
from gpurun.records.facts import Facts
from gpurun.records.spec import StopRule
from gpurun.records.tuning import Ceilings, TrialPurpose
from gpurun.tuner.tuning_trial import MUCH_SLOWER, Trial, TrialRequest

WINDOW_SECONDS = 1.0
"""Each of its three windows lasts so long at least."""


def not_needed(facts: Facts) -> str:
    """Reason why the ceilings would tell nothing of a script; "" where they would."""
    if facts.result.ranks > 1:
        return "the script runs in several ranks"
    wait = data_wait(facts)
    if isinstance(wait, Skip):
        return wait.reason
    return "" if wait.noticeable else wait.too_short.reason


def ceilings_of(
    facts: Facts,
    rule: StopRule,
    launch: Callable[[TrialRequest], Trial] | None,
    proven: float | None = None,
) -> Ceilings:
    """The ceilings of a script, or why there are none.

    `rule`: of the other trials; this one is shorter, and audits nothing. It takes no step beyond
    the script's own last one: a schedule of fixed length ends there. `launch`: None where the
    budget has no room for it. `proven`: samples/s under the settings that were chosen, which no
    ceiling may contradict; single trials may be faster by chance.
    """
    why = not_needed(facts)
    if launch is None or why:
        return _none(why or "the budget has no room for it")
    most = min(rule.max_steps, facts.planned_steps or rule.max_steps)
    short = replace(rule, audit_steps=0, min_seconds=WINDOW_SECONDS, max_steps=most)
    trial = launch(TrialRequest(TrialPurpose.CEILINGS, facts.current, short, ceilings=True))
    seen = None if trial.log is None else trial.log.ceilings
    if trial.log is None or seen is None:
        return _none(trial.record.reason or "the script ended before it was seen")
    script = samples_per_second(trial.log, seen.script_ns)
    model = samples_per_second(trial.log, seen.model_ns)
    usual = facts.result.samples_per_second
    if script and usual and not 1 / MUCH_SLOWER < script / usual < MUCH_SLOWER:
        return _none("the script had another pace in that trial")
    if model and proven and proven > model:
        return _none("the changes made the model itself faster")
    too_short = trial.log.stop is not None and trial.log.stop.reason == "max_steps"
    missing = "the training is too short" if too_short else "no batch could be kept"
    reasons = [] if model is not None else [missing]
    reasons += [seen.detail] if seen.detail else []
    bound = max(model / script, 1.0) if model and script else None
    return Ceilings(seen.loader_samples_per_second, model, script, bound, "; ".join(reasons))


def _none(why: str) -> Ceilings:
    return Ceilings(None, None, None, None, why)


def samples_per_second(log: ProcessLog, window_ns: tuple[int, int] | None) -> float | None:
    """Of the steps that ended in a window of the process's clock; None where none did.

    By the device's clock where that took longer: the host may run ahead of it.
    """
    clock = step_clock(log)
    if clock is None or window_ns is None:
        return None
    begin, end = window_ns
    ends = clock.steps[StepRow.END_NS]
    inside = slice(bisect_right(ends, begin), bisect_right(ends, end))
    samples, device = sum_known(clock.samples[inside]), clock.steps[StepRow.DEVICE_NS][inside]
    took_ns = max(end - begin, 0 if UNKNOWN in device else sum(device))
    return samples / (took_ns / 1e9) if samples else None
