"""Reasons why the settings of a trial are not kept although it may be fast."""

from __future__ import annotations

from gpurun.formatting.number_text import count
from gpurun.knobs.api import Knob
from gpurun.knobs.batching.batch_size import BatchSize
from gpurun.pairs.gain import LEAST_GAIN
from gpurun.records.events import OUT_OF_MEMORY
from gpurun.records.facts import Facts
from gpurun.tuner import knob_calls
from gpurun.tuner.knob_calls import KnobRaised
from gpurun.tuner.search.trial_gain import gain_over, startup_difference
from gpurun.tuner.tuning_trial import Trial

SLOW_START_SECONDS = 10.0
"""A smaller difference may only show which process was started early."""
LEAST_SHARE = 0.9
"""A step has at least this part of the samples that its batch size asks for."""


def not_applied(knob: Knob, trial: Trial, argv: tuple[str, ...]) -> str | None:
    """Reason why a setting had no effect in its own trial, None if it had one.

    `argv`: the script's arguments without any setting.
    """
    if trial.result is None:
        return None
    mine = [o for o in trial.result.knobs if o.knob == knob.name]
    failed = next((o for o in mine if o.outcome == "failed"), None)
    if failed is not None:
        return f"failed: {failed.detail}"
    if any(o.outcome == "applied" for o in mine):
        return None
    if mine:
        return f"not applied: {mine[0].detail}"
    value = trial.record.knobs.get(knob.name)
    try:
        outside = (
            knob_calls.environment(knob, value) or knob_calls.arguments(knob, value, argv) != argv
        )
    except KnobRaised as raised:
        return str(raised)
    return None if outside else "not applied: nothing in the script called for it"


def repaid_too_late(trial: Trial, without: Trial, facts: Facts) -> str | None:
    """Reason why the training ends before a gain has repaid a slow start, or None."""
    if facts.planned_steps is None or gain_over(trial, without) < LEAST_GAIN:
        return None
    later, steps = startup_difference(trial, without)
    if later is None or later < SLOW_START_SECONDS:
        return None
    if steps is None or steps <= facts.planned_steps:
        return None
    return (
        f"starts {later:.0f} s later, repaid after {count(steps, 'step')}: "
        f"the training has {facts.planned_steps:,}"
    )


def trained_with_less(trial: Trial, best: Trial, facts: Facts) -> str | None:
    """Reason why a trial did not train what its settings ask for; None if it did.

    `best` is a trial of other settings; `facts` are those of the script as it is.
    """
    traits = () if trial.log is None else trial.log.traits
    caught = next((t.detail for t in traits if t.trait == OUT_OF_MEMORY), None)
    if caught is not None and OUT_OF_MEMORY not in facts.traits:
        return f"the model ran out of memory at {caught}, and the script went on"
    return _smaller_batch(trial, best)


def _smaller_batch(trial: Trial, best: Trial) -> str | None:
    """By the samples of a batch and of a step: a script may accumulate up to a fixed number."""
    if trial.result is None or best.result is None or BatchSize.name not in trial.record.knobs:
        return None
    asked, seen = _factor(trial) / _factor(best), []
    if trial.result.batch_size and best.result.batch_size:
        seen.append((trial.result.batch_size, asked * best.result.batch_size))
    if trial.counted_steps and best.counted_steps:
        seen.append((trial.samples_a_step(), asked * best.samples_a_step()))
    if not seen or any(size >= LEAST_SHARE * expected for size, expected in seen):
        return None
    return "the size of its batches was {:g} instead of {:g}".format(*seen[0])


def _factor(trial: Trial) -> float:
    """By how much the settings of a trial enlarge the batch."""
    value = trial.record.knobs.get(BatchSize.name)
    return 1.0 if value is None else float(value["batch_size"] / value["from"])
