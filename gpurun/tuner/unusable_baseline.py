"""Verdicts for a script that cannot be tuned, each with its reason."""

from __future__ import annotations

from gpurun.formatting.number_text import count
from gpurun.records.failure import FailureKind
from gpurun.records.result import ENDED_WELL
from gpurun.tuner.trial_length import needed_steps
from gpurun.tuner.tuning_trial import Trial


def too_few(trial: Trial, steps: int) -> tuple[str, str]:
    """The verdict on a script that ends too soon."""
    seen, needed = count(steps, "step"), needed_steps(trial.result)
    return "too_few_steps", f"it ended after {seen}; {needed} are needed to measure it"


def unusable(trial: Trial) -> tuple[str, str]:
    """The verdict on a trial without a throughput, or without the figure to tune for."""
    record = trial.record
    if trial.throughput is not None and trial.score is None:
        return "not_measured", f"the {trial.objective.value} of a sample was not measured in it"
    steps = trial.result.steps if trial.result else 0
    kind = None if trial.failure is None else trial.failure.kind
    if kind in (FailureKind.RANKS_REFUSED, FailureKind.NO_INPUT):
        return "script_failed", record.reason
    if record.status == "timeout" and steps >= needed_steps(trial.result):
        return (
            "inconclusive",
            f"it did not end: {record.reason}, {count(steps, 'step')} seen; "
            "a longer --budget gives it more time",
        )
    if record.status == "timeout":
        seen = count(steps, "step") if steps else "no training step"
        return (
            "inconclusive",
            f"{seen} of the {needed_steps(trial.result)} needed in {record.seconds:.0f} s: "
            f"{record.reason}; a longer --budget gives it more time",
        )
    if record.status in ENDED_WELL:
        if not steps:
            return "no_training", "no training step was seen in it"
        return too_few(trial, steps)
    if kind is FailureKind.KILLED:
        return "script_failed", f"a trial of the script as it is: {record.reason}; tune again"
    return "script_failed", f"the script fails by itself ({record.status}): {record.reason}"
