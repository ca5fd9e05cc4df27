"""Where a search stands: the kept settings, the trial that measured them, and what was dropped.

Trials are compared by their gains over the reference, else by their scores. The search only decides
what goes to the proof: nothing of what it measures is claimed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from gpurun.arguments.options import Objective
from gpurun.formatting.number_text import byte_size, joules, number
from gpurun.pairs.gain import LEAST_GAIN
from gpurun.records.facts import Facts
from gpurun.records.tuning import GuardVerdict, LadderRow, Rejection
from gpurun.trials.failure_cause import recompiled
from gpurun.tuner.search.changes import Change
from gpurun.tuner.training_judge import TrainingJudge
from gpurun.tuner.tuning_trial import Trial


@dataclass
class SearchState:
    """`dropped`: the rows of the changes that were tried and not kept."""

    settings: dict[str, Any]
    best: Trial
    facts: Facts
    judge: TrainingJudge
    dropped: list[LadderRow] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)

    def branch(self) -> SearchState:
        """The same with settings of its own; what was dropped and rejected is shared."""
        return replace(self, settings=dict(self.settings))

    def move(self, settings: dict[str, Any], trial: Trial) -> None:
        """Stand on these settings, which `trial` measured."""
        self.settings = settings
        self.best = trial
        if trial.result is not None:
            self.facts = replace(self.facts, current=dict(settings), result=trial.result)
        self.dropped[:] = [
            row for row in self.dropped if not row.changes.items() <= settings.items()
        ]

    def drop(
        self,
        change: Change,
        trial: Trial,
        reason: str,
        verdict: GuardVerdict | None = None,
        over: Trial | None = None,
    ) -> None:
        """Note what a change that is not kept was measured with, and why it is not.

        `over`: the trial without it; by default the best one.
        """
        without = over or self.best
        later, steps = startup_difference(trial, without)
        row = LadderRow(
            stage=change.stage,
            changes=change.settings,
            effect=change.knob.effect.value,
            kept=False,
            samples_per_second=trial.record.samples_per_second,
            speedup=gain_over(trial, without) or None,
            peak_memory_bytes=trial.record.peak_memory_bytes,
            joules_per_sample=trial.record.joules_per_sample,
            loss_deviation=None if verdict is None else verdict.loss_deviation,
            output_deviation=verdict.output_deviation if verdict and verdict.forward_only else None,
            reason=reason,
            startup_seconds=later,
            break_even_steps=steps,
        )
        self.dropped[:] = [other for other in self.dropped if other.changes != row.changes]
        self.dropped.append(row)


# -- two trials compared ---------------------------------------------------------------------------


def gain_over(trial: Trial, other: Trial) -> float:
    """By what factor a trial is better than another; 0 where that is not known of one of them.

    By what both gain over the reference, where both took turns with it.
    """
    if trial.gain is not None and other.gain is not None:
        return trial.gain / other.gain
    return (trial.score or 0.0) / other.score if other.score else 0.0


def gains(trial: Trial, other: Trial) -> bool:
    """True if a trial is better than another by more than the turns of both could be off."""
    gain = gain_over(trial, other)
    error = math.hypot(trial.record.gain_error or 0.0, other.record.gain_error or 0.0)
    return gain >= LEAST_GAIN and math.log(gain) > error


def loses(trial: Trial, other: Trial) -> bool:
    """True if a trial is worse than another by more than a change is worth."""
    return gain_over(trial, other) < 1 / LEAST_GAIN


def seems_to_gain(trial: Trial, other: Trial) -> bool:
    """True if a trial may be better, but by less than the turns of both could be off."""
    return gain_over(trial, other) >= LEAST_GAIN and not gains(trial, other)


def no_gain(trial: Trial, without: Trial) -> str:
    """Reason why a change is not kept, with what both trials measured: each is but one."""
    if why := recompiled(trial.log):
        return f"no gain: {why}"
    kind = "uncertain" if seems_to_gain(trial, without) else "no gain"
    return f"{kind}: {compared(trial, without)} without it"


def compared(trial: Trial, other: Trial) -> str:
    """The measured values of two trials: "602 samples/s against 906", "×1.31 against ×1.02"."""
    if trial.gain is not None and other.gain is not None:
        return f"×{trial.gain:.2f} against ×{other.gain:.2f}"
    if trial.objective is Objective.MEMORY:
        sizes = (trial.record.peak_memory_bytes, other.record.peak_memory_bytes)
        return " against ".join("unknown" if size is None else byte_size(size) for size in sizes)
    if trial.objective is Objective.ENERGY:
        told = (trial.record.joules_per_sample, other.record.joules_per_sample)
        shown = ("unknown" if one is None else joules(one) for one in told)
        return " a sample against ".join(shown)
    rates = (number(t.throughput) if t.throughput else "unknown" for t in (trial, other))
    return " samples/s against ".join(rates)


def startup_difference(trial: Trial, without: Trial) -> tuple[float | None, int | None]:
    """How many seconds longer a trial took to its pace than one without the change, and after how
    many steps that is made good.
    """
    if trial.result is None or without.result is None:
        return None, None
    ours, theirs = trial.result, without.result
    if ours.startup_seconds is None or theirs.startup_seconds is None:
        return None, None
    later = ours.startup_seconds - theirs.startup_seconds
    if ours.step_time_ms is None or theirs.step_time_ms is None:
        return later, None
    gain = gain_over(trial, without)
    if trial.gain is not None and without.gain is not None and gain > 0:  # by turns
        won = theirs.step_time_ms.mean * (1 - 1 / gain) / 1000
    else:
        won = (theirs.step_time_ms.mean - ours.step_time_ms.mean) / 1000
    return later, math.ceil(max(later, 0.0) / won) if won > 0 else None
