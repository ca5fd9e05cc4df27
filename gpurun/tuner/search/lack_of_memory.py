"""Scripts that run out of memory, catch that, and train with less than their settings ask for."""

from __future__ import annotations

from gpurun.knobs.batching.batch_size import BatchSize
from gpurun.records.events import OUT_OF_MEMORY
from gpurun.records.facts import Facts
from gpurun.tuner.tuning_trial import Trial

LEAST_SHARE = 0.9
"""A step has at least this part of the samples that its batch size asks for."""


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
