"""The stop rule of a tuning's trials, which measure later epochs where these load at another pace.

A data set that keeps its samples loads slowly in its first epoch alone. What is gained there says
nothing of the training, and workers may even lose what the script's own process would keep.
"""

from __future__ import annotations

from dataclasses import replace

from gpurun.arguments.options import Objective
from gpurun.formatting.number_text import count, milliseconds
from gpurun.measure.epoch_duration import OTHER_PACE
from gpurun.records.facts import Facts
from gpurun.records.result import RunResult
from gpurun.records.spec import StopRule
from gpurun.tuner.trial_length import plan_trials, with_read_ahead

FIRST_EPOCH_SHARE = 0.15
"""A trial of the script as it is goes through the first epoch if this takes no larger part of the
budget."""
LONG_EPOCH_SECONDS = 300.0
"""A training with longer epochs has few of them."""


class TrialPlan:
    """`rule`: of the next trial. `longer`: it goes on into the second epoch.

    `budget_needed`: seconds of a budget under which a trial would see the second epoch; None if one
    does, or if it cannot be much faster.
    """

    def __init__(
        self, facts: Facts, steps_per_epoch: int | None, budget: float, objective: Objective
    ) -> None:
        """`facts`: of the first trial."""
        workers = max((x.workers for x in facts.loaders_of_training()), default=0)
        usual = plan_trials(facts.result, steps_per_epoch, budget, objective)
        usual = with_read_ahead(usual, {"loader_workers": workers}, facts.loaders)
        self.rule = self._usual = usual
        self.longer = False
        self.budget_needed: float | None = None
        only_one = facts.planned_steps is not None and facts.planned_steps <= (steps_per_epoch or 0)
        known = None if only_one else steps_per_epoch
        self._later, seconds = _beyond_first_epoch(usual, facts.result, known)
        if self._later is None or not _waits_for_data(facts.result):
            return
        if seconds <= FIRST_EPOCH_SHARE * budget:
            self.rule, self.longer = self._later, True
        elif seconds <= LONG_EPOCH_SECONDS:
            self.budget_needed = seconds / FIRST_EPOCH_SHARE

    @property
    def described(self) -> str:
        """One line."""
        steps, audited = self._usual.min_steps - self._usual.audit_steps, self._usual.audit_steps
        return f"trials measure {count(steps, 'step')} after {audited} audited ones"

    def settle(self, result: RunResult) -> list[str]:
        """Plan the later trials by the script as it is; a line where its epochs differ."""
        pace = result.epoch_pace
        if pace is None:
            self.rule, self.longer = self._usual, False
            return []
        self.rule, self.longer = self._later or self._usual, True
        first, later = milliseconds(pace.first_ms), milliseconds(pace.later_ms)
        return [f"a step takes {first} in the first epoch and {later} in later ones"]


def _waits_for_data(probe: RunResult) -> bool:
    """True if its steps wait so long that those of later epochs may have another pace."""
    step, split = probe.step_time_ms, probe.split
    wait = None if split is None else split.data_wait_ms
    return step is not None and wait is not None and wait >= (1 - 1 / OTHER_PACE) * step.mean


def _beyond_first_epoch(
    rule: StopRule, probe: RunResult, steps_per_epoch: int | None
) -> tuple[StopRule | None, float]:
    """The rule whose window begins with the second epoch, and the seconds that this takes.

    None where the window lies beyond the first one anyway, or a trial cannot get so far.
    """
    more = (steps_per_epoch or 0) - rule.audit_steps - rule.warmup_steps
    least = rule.min_steps + more
    if more <= 0 or least > rule.max_steps or probe.status == "completed":
        return None, 0.0
    step = 0.0 if probe.step_time_ms is None else probe.step_time_ms.mean / 1000
    return replace(rule, warmup_steps=rule.warmup_steps + more, min_steps=least), more * step
