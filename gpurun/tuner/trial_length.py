"""Plans the length of trials: long enough to measure, equal for all, within the budget.

A data set that keeps its samples loads slowly in its first epoch alone. What is gained there says
nothing of the training, and workers may even lose what the script's own process would keep. So
trials measure later epochs where these load at another pace. The first trial tells where that may
be: it loads its audited samples again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpurun.arguments.options import Objective
from gpurun.formatting.number_text import count, milliseconds
from gpurun.measure.epoch_duration import OTHER_PACE
from gpurun.records.events import LoaderEvent
from gpurun.records.facts import Facts
from gpurun.records.result import RunResult
from gpurun.records.spec import OUTPUT_CALLS, StopRule
from gpurun.trials.stop_rules import LEAST_STEPS, MOST_STEPS, WINDOW_SECONDS

AUDIT_STEPS = 8
WARMUP_STEPS = 4
PROBE_STEPS = 24
PROBE_SECONDS = 1.0
WINDOWS_A_BUDGET = 75
"""A smaller budget shortens the windows, so that there are trials to choose from."""
SHORTEST_SECONDS = 1.5
"""And at least lasts at any speed."""
SHORTEST_OF_ENERGY = 3.0
"""Where energy counts: a GPU's counter of joules is read between samples inside the window."""
SLOW_STEPS = 6
"""Fewest where so many last as long as a window should: a launch is one measurement anyway."""
LONGEST_EPOCH_WINDOWS = 2
"""An epoch up to so many windows is measured whole: opening the workers is part of the price."""
FIRST_EPOCH_SHARE = 0.15
"""A trial of the script as it is goes through the first epoch if this takes no larger part of the
budget."""
LONG_EPOCH_SECONDS = 300.0
"""A training with longer epochs has few of them."""

PROBE = StopRule(
    min_steps=PROBE_STEPS,
    min_seconds=PROBE_SECONDS,
    max_steps=MOST_STEPS,
    warmup_steps=WARMUP_STEPS,
    audit_steps=AUDIT_STEPS,
)
"""The first trial: nothing is known yet."""


def audit_steps(probe: RunResult) -> int:
    """Steps that are looked at closely, before those that are measured."""
    return OUTPUT_CALLS if probe.clock == "forward" else AUDIT_STEPS


def needed_steps(probe: RunResult | None) -> int:
    """A script that ends before so many steps cannot be tuned."""
    audited = AUDIT_STEPS if probe is None else audit_steps(probe)
    return audited + WARMUP_STEPS + LEAST_STEPS


def plan_trials(
    probe: RunResult,
    steps_per_epoch: int | None,
    budget_seconds: float,
    objective: Objective = Objective.THROUGHPUT,
) -> StopRule:
    """The stop rule of every later trial, from what the first one showed."""
    audited = audit_steps(probe)
    lead = audited + WARMUP_STEPS
    step_seconds = probe.step_time_ms.mean / 1000 if probe.step_time_ms else 1.0
    window = min(WINDOW_SECONDS, max(SHORTEST_SECONDS, budget_seconds / WINDOWS_A_BUDGET))
    fewest = SLOW_STEPS if SLOW_STEPS * step_seconds >= window else LEAST_STEPS
    measured = max(fewest, math.ceil(window / max(step_seconds, 1e-6)))
    if steps_per_epoch and steps_per_epoch >= LEAST_STEPS:
        if steps_per_epoch * step_seconds <= LONGEST_EPOCH_WINDOWS * window:
            measured = steps_per_epoch * math.ceil(measured / steps_per_epoch)
    if probe.status == "completed":
        measured = min(measured, probe.steps - lead)
    energy = objective is Objective.ENERGY
    return StopRule(
        min_steps=min(lead + measured, MOST_STEPS),
        min_seconds=SHORTEST_OF_ENERGY if energy else SHORTEST_SECONDS,
        max_steps=MOST_STEPS,
        warmup_steps=WARMUP_STEPS,
        audit_steps=audited,
    )


def budget_flag(seconds: float) -> str:
    """The flag that asks for about so many seconds, in whole minutes: "--budget 5m"."""
    return f"--budget {max(1, math.ceil(seconds / 60))}m"


def with_read_ahead(
    rule: StopRule, settings: Mapping[str, Any], loaders: Iterable[LoaderEvent] = ()
) -> StopRule:
    """The rule under loader workers: what they read ahead must be consumed before measuring."""
    workers = settings.get("loader_workers") or 0
    prefetch = max((x.prefetch_factor or 2 for x in loaders), default=2)
    ahead = int(workers) * int(settings.get("loader_prefetch") or prefetch) if workers else 0
    return _lengthened(rule, max(0, ahead + 2 - rule.warmup_steps) if workers else 0)


class TrialPlan:
    """`rule`: of the next trial. `longer`: it goes on into the second epoch.

    `budget_needed`: seconds of a budget under which a trial would see the second epoch; None if one
    does, or if it cannot be much faster.
    """

    def __init__(
        self,
        facts: Facts,
        steps_per_epoch: int | None,
        budget: float,
        objective: Objective,
        reload_rate: float | None = None,
    ) -> None:
        """`facts`: of the first trial. `reload_rate`: of samples that it loaded again, a second."""
        probe = facts.result
        workers = max((x.workers for x in facts.loaders_of_training()), default=0)
        usual = plan_trials(probe, steps_per_epoch, budget, objective)
        usual = with_read_ahead(usual, {"loader_workers": workers}, facts.loaders)
        self.rule = self._usual = self._later = usual
        self.longer = False
        self.budget_needed: float | None = None
        more = (steps_per_epoch or 0) - usual.audit_steps - usual.warmup_steps
        only_one = facts.planned_steps is not None and facts.planned_steps <= (steps_per_epoch or 0)
        possible = usual.min_steps + more <= usual.max_steps and probe.status != "completed"
        if more <= 0 or only_one or not possible:
            return
        self._later = _lengthened(usual, more)
        step, split = probe.step_time_ms, probe.split
        wait = None if split is None else split.data_wait_ms
        if step is None or wait is None or wait < (1 - 1 / OTHER_PACE) * step.mean:
            return
        rate = probe.samples_per_second
        if reload_rate and rate and not workers:  # the start of workers would be in it
            later = step.mean - wait + step.mean * rate / reload_rate
            if later > step.mean / OTHER_PACE:
                return
        seconds = more * step.mean / 1000
        if seconds <= FIRST_EPOCH_SHARE * budget:
            self.rule, self.longer = self._later, True
        elif seconds <= LONG_EPOCH_SECONDS:
            self.budget_needed = seconds / FIRST_EPOCH_SHARE

    @property
    def described(self) -> str:
        """One line."""
        steps, audited = self._usual.min_steps - self._usual.audit_steps, self._usual.audit_steps
        return f"trials measure {count(steps, 'step')} after {audited} audited ones"

    def settle(self, result: RunResult) -> str:
        """Plan the later trials by the script as it is; a line where its epochs differ."""
        pace = result.epoch_pace
        self.rule, self.longer = (self._later if pace else self._usual), pace is not None
        if pace is None:
            return ""
        first, later = milliseconds(pace.first_ms), milliseconds(pace.later_ms)
        return f"a step takes {first} in the first epoch and {later} in later ones"


def _lengthened(rule: StopRule, steps: int) -> StopRule:
    """The rule with so many more steps before the measured window."""
    return replace(rule, warmup_steps=rule.warmup_steps + steps, min_steps=rule.min_steps + steps)
