"""Which trials see the second epoch: later epochs may load at another pace than the first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpurun.arguments.options import Objective
from gpurun.records.facts import Facts
from gpurun.records.result import EpochPace
from gpurun.tuner.trial_length import TrialPlan
from tests.unit.knob_facts import facts, loader, result


def waiting(step_ms: float = 100.0, share: float = 0.9, **changes: Any) -> Facts:
    """A first trial that was stopped in the first epoch, and waited for data."""
    return facts(result=result(share * step_ms, step_ms, status="stopped", steps=24), **changes)


def plan(of: Facts, steps_per_epoch: int | None = 100, budget: float = 100.0) -> TrialPlan:
    return TrialPlan(of, steps_per_epoch, budget, Objective.THROUGHPUT)


def after_reload(rate: float, workers: int = 0) -> TrialPlan:
    """Of a trial with 100 samples/s, 90 % of it waiting for data."""
    of = waiting(**loader(workers=workers))
    of = replace(of, result=replace(of.result, samples_per_second=100.0))
    return TrialPlan(of, 100, 100.0, Objective.THROUGHPUT, rate)


def begin(planned: TrialPlan) -> int:
    """The step at which the measured window of the next trial begins."""
    return planned.rule.audit_steps + planned.rule.warmup_steps


def test_the_script_as_it_is_is_measured_in_its_second_epoch_where_that_is_soon() -> None:
    soon = plan(waiting())
    assert begin(soon) == 100
    assert soon.rule.min_steps - begin(soon) == plan(waiting(share=0.1)).rule.min_steps - 12
    assert soon.longer
    assert soon.budget_needed is None


def test_nobody_waits_for_a_second_epoch_where_samples_load_no_faster_again() -> None:
    """README's example computes its samples: an epoch of 10 s says what 16 of its steps say."""
    assert after_reload(10_000.0).longer, "the data set keeps its samples"
    for rate in (80.0, 150.0):
        slow = after_reload(rate)
        assert (begin(slow), slow.longer, slow.budget_needed) == (12, False, None)
    assert after_reload(80.0, workers=2).longer, "the rate has the start of the workers in it"


def test_later_trials_measure_what_epochs_have_in_common_or_else_later_epochs() -> None:
    alike, differing = plan(waiting()), plan(waiting())
    assert alike.settle(result()) == ""
    assert begin(alike) == 12
    line = differing.settle(result(epoch_pace=EpochPace(166.0, 0.15)))
    assert line == "a step takes 166 ms in the first epoch and 0.150 ms in later ones"
    assert begin(differing) == 100
    assert not alike.longer
    assert differing.longer, "the others take this time, too"


def test_an_epoch_that_takes_much_of_the_budget_is_not_waited_for_but_named() -> None:
    late = plan(waiting(), steps_per_epoch=300)
    assert begin(late) == 12
    assert late.budget_needed is not None
    assert begin(plan(waiting(), 300, 1.01 * late.budget_needed)) == 300


def test_nobody_waits_for_a_second_epoch_that_is_none_or_tells_nothing() -> None:
    hours = plan(waiting(), steps_per_epoch=100_000)
    computing = plan(waiting(share=0.2))
    streaming = plan(waiting(), steps_per_epoch=None)
    single = plan(waiting(planned_steps=100))
    ended = plan(facts(result=result(90.0, 100.0, status="completed", steps=24)))
    for planned in (hours, computing, streaming, single, ended):
        assert begin(planned) == 12
        assert (planned.longer, planned.budget_needed) == (False, None)
