"""Where a search stands: the kept settings, the trial that measured them, and what was dropped."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from gpurun.knobs.api import Effect
from gpurun.records.facts import Facts
from gpurun.records.tuning import GuardVerdict, LadderRow, Rejection
from gpurun.tuner.script_facts import facts_under
from gpurun.tuner.search.changes import Change
from gpurun.tuner.search.objections import repaid_too_late, trained_with_less
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
            self.facts = facts_under(self.facts, settings, trial.result)
        self.dropped[:] = [
            row for row in self.dropped if not row.changes.items() <= settings.items()
        ]

    def drop(
        self, change: Change, trial: Trial, reason: str, verdict: GuardVerdict | None = None
    ) -> None:
        """Note what a change that is not kept was measured with, and why it is not."""
        later, steps = startup_difference(trial, self.best)
        row = LadderRow(
            stage=change.stage,
            changes=change.settings,
            effect=change.knob.effect.value,
            kept=False,
            samples_per_second=trial.record.samples_per_second,
            speedup=gain_over(trial, self.best) or None,
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

    def objection(self, trial: Trial, effect: Effect) -> tuple[str | None, GuardVerdict | None]:
        """Reason why the settings of a trial cannot be kept, or None, and the guard's verdict.

        `effect`: of all its settings together.
        """
        if trial.throughput is None or trial.result is None:
            return trial.record.reason or f"the trial ended as {trial.record.status}", None
        if trial.score is None:
            return trial.no_score, None
        if trial.evidence is None:
            return "the trial showed nothing of its training", None
        less = trained_with_less(trial, self.best, self.facts)
        if less is not None:
            return less, None
        verdict = self.judge.judge([trial.evidence], effect)
        if not verdict.accepted:
            rejection = Rejection(trial.record.knobs, verdict)
            if rejection not in self.rejections:
                self.rejections.append(rejection)
            return "; ".join(verdict.reasons), verdict
        return repaid_too_late(trial, self.best, self.facts), verdict
