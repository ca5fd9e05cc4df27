"""Trials of the loader: model and loader each alone, and numbers of loader workers in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpurun.arguments.options import Objective
from gpurun.formatting.number_text import number
from gpurun.knobs.api import Knob, Skip
from gpurun.knobs.loading.loader_need import data_wait, worker_rates
from gpurun.knobs.loading.loader_workers import numbers_for_turns
from gpurun.measure.training_clock import samples_per_second
from gpurun.records.facts import Facts, WorkerRate
from gpurun.records.spec import StopRule, WorkerTurnPlan
from gpurun.records.tuning import Ceilings, TrialPurpose
from gpurun.trials import knob_calls
from gpurun.trials.knob_calls import KnobRaised
from gpurun.tuner.tuning_trial import Trial, TrialRequest

Launch = Callable[[TrialRequest], Trial]
WINDOW_SECONDS = 1.0
"""Each of its three windows lasts so long at least."""
OTHER_PACE = 1.7
"""So many times as fast as in other trials, or as slow, the script was another one."""
TURNS_SECONDS = 12.0
"""All turns end by then. Six numbers have two turns of each in it where a step takes 50 ms."""
SHORT_EPOCH_SECONDS = 1.0
"""A turn has whole epochs if they are shorter, so that what an epoch's start costs is in it."""


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
    launch: Launch | None,
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
    if script and usual and not 1 / OTHER_PACE < script / usual < OTHER_PACE:
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


# -- numbers of workers ----------------------------------------------------------------------------


def worker_rates_of(
    knob: Knob, facts: Facts, rule: StopRule, launch: Launch
) -> tuple[WorkerRate, ...] | Skip:
    """The rates of several numbers of workers under the settings of the facts, or why none.

    `knob`: it sets the number. `rule`: of the other trials. Empty: the launch showed nothing.
    """
    numbers = numbers_for_turns(facts)
    if isinstance(numbers, Skip):
        return numbers
    if facts.objective != Objective.THROUGHPUT.value or len(numbers) < 2:
        return Skip("it is tuned for throughput alone, where the memory has room for two workers")
    try:
        companions = [knob_calls.companions(knob, facts, value) for value in numbers]
    except KnobRaised as raised:
        return Skip(str(raised))
    settings = {**facts.current, **companions[-1], knob.name: numbers[-1]}
    usual = facts.current.get("cpu_threads")
    threads = tuple(own.get("cpu_threads", usual) for own in companions)
    settings.pop("cpu_threads", None)  # of each turn its own
    plan = WorkerTurnPlan(numbers, threads, TURNS_SECONDS, _steps_of_short_epochs(facts))
    most = min(rule.max_steps, facts.planned_steps or rule.max_steps)
    stop = replace(rule, audit_steps=0, max_steps=most)
    trial = launch(TrialRequest(TrialPurpose.WORKERS, settings, stop, worker_turns=plan))
    turns: dict[int, list[float]] = {}
    for turn in trial.log.worker_turns if trial.log else ():
        rate = samples_per_second(trial.log, (turn.begin_ns, turn.end_ns)) if trial.log else None
        if rate is not None:
            turns.setdefault(turn.workers, []).append(rate)
    if trial.failure is None and _still_rising(turns):
        return ()
    return worker_rates(turns)


def _still_rising(turns: dict[int, list[float]]) -> bool:
    """True if the time was over when the last of the numbers had gained again."""
    first = {number: rates[0] for number, rates in turns.items()}
    over = any(len(rates) == 1 for rates in turns.values())
    return over and max(first, key=first.__getitem__) == max(first)


def _steps_of_short_epochs(facts: Facts) -> int:
    """Steps of an epoch that is so short that turns have whole ones, else 0."""
    step = facts.result.step_time_ms
    lengths = [x.length for x in facts.loaders_of_training() if x.length is not None]
    if step is None or len(lengths) != 1:
        return 0
    return lengths[0] if lengths[0] * step.mean / 1000 <= SHORT_EPOCH_SECONDS else 0


def worker_rates_sentence(rates: tuple[WorkerRate, ...]) -> str:
    """One line: "workers in turns: 1: 160, 2: 310 samples/s"."""
    told = ", ".join(f"{rate.workers}: {number(rate.samples_per_second)}" for rate in rates)
    errors = [rate.error for rate in rates if rate.error is not None]
    error = f" (±{max(errors):.1%})" if errors else ""
    return f"workers in turns: {told} samples/s{error}" if told else "workers in turns: no figures"
