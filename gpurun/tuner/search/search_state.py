"""Where a search stands: the kept settings, the trial that measured them, and what was dropped."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from gpurun.records.facts import Facts
from gpurun.records.tuning import GuardVerdict, LadderRow, Rejection
from gpurun.tuner.search.changes import Change
from gpurun.tuner.search.trial_gain import gain_over, startup_difference
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
