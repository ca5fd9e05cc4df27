"""Asks the guard whether trials still train as the script does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpurun.knobs.api import Effect
from gpurun.records.spec import OUTPUT_CALLS, StopRule
from gpurun.records.tuning import GuardVerdict
from gpurun.tuner.guard.guard_verdict import judge_training, may_be_rounding
from gpurun.tuner.guard.training_evidence import Evidence
from gpurun.tuner.tuning_trial import Trial, TrialRequest


class TrainingJudge:
    """Compares trials with those of the script as it is (`baselines`).

    `rounded`: what a trial shows that only rounds; None if nothing. It is called once, where the
    guard needs to know what rounding alone does.
    """

    def __init__(self, baselines: list[Evidence], rounded: Callable[[], Evidence | None]) -> None:
        self.baselines = baselines
        self._rounded = rounded
        self._asked = False

    def judge(
        self, candidates: Sequence[Evidence], effect: Effect, repeats: Sequence[Evidence] = ()
    ) -> GuardVerdict:
        """`repeats`: further trials of the script as it is, launched beside the candidates."""
        verdict = judge_training([*self.baselines, *repeats], candidates, effect)
        if may_be_rounding(verdict, effect) and self.learn_rounding():
            verdict = judge_training([*self.baselines, *repeats], candidates, effect)
        return verdict

    def learn_rounding(self) -> bool:
        """Ask for the trial that only rounds, unless it was before; true if it showed anything."""
        if self._asked:
            return False
        self._asked = True
        shown = self._rounded()
        if shown is not None:
            self.baselines.append(shown)
        return shown is not None


def launch_rounded(
    launch: Callable[[TrialRequest], Trial],
    note: Callable[[str], None],
    base: Mapping[str, Any],
    rule: StopRule,
    baselines: Sequence[Evidence],
) -> Evidence | None:
    """What the script shows with rounded parameters and the settings `base`.

    `rule`: of the other trials, `baselines` among them. This one takes some steps only, and without
    it there may be nothing left to prove: it is launched whatever is left of the budget.
    """
    note("is it rounding alone? a trial of the script that only rounds tells")
    short = rounding_rule(rule, baselines)
    return launch(TrialRequest("rounding", base, short, rounded=True)).evidence


def rounding_rule(rule: StopRule, baselines: Sequence[Evidence]) -> StopRule:
    """The length of a trial that only rounds: as far as anything is compared with it.

    A training that evaluates does so at any time. A script that only infers has its first calls
    looked at; with fewer of them the reference would miss calls that rounding moves most.
    """
    if any(e.trained for b in baselines for e in b.outputs):
        return rule
    looked = OUTPUT_CALLS if any(b.forward_only for b in baselines) else 0
    steps = max(rule.audit_steps, looked) + 1
    return replace(rule, min_steps=steps, max_steps=steps, min_seconds=0.0)
