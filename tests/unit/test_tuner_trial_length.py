"""How long trials are: whole short epochs, never more steps than the script has."""

from __future__ import annotations

from gpurun.arguments.options import Objective
from gpurun.measure.resource_use import ENERGY_SECONDS
from gpurun.trials.stop_rules import LEAST_STEPS, MOST_STEPS
from gpurun.tuner.trial_length import (
    AUDIT_STEPS,
    PROBE,
    SLOW_STEPS,
    WARMUP_STEPS,
    budget_flag,
    plan_trials,
    with_read_ahead,
)
from tests.unit.knob_facts import result

LEAD = AUDIT_STEPS + WARMUP_STEPS


def test_a_short_epoch_is_measured_whole() -> None:
    rule = plan_trials(result(step_ms=10.0, status="stopped"), 150, 300.0)
    assert (rule.min_steps - LEAD) % 150 == 0


def test_a_long_epoch_is_not() -> None:
    rule = plan_trials(result(step_ms=100.0, status="stopped"), 10_000, 300.0)
    assert rule.min_steps < 200


def test_a_script_that_ended_by_itself_is_not_asked_for_more_steps_than_it_has() -> None:
    rule = plan_trials(result(step_ms=1.0, status="completed", steps=40), 40, 300.0)
    assert rule.min_steps == 40


def test_the_slowest_script_is_still_measured_and_the_fastest_still_ends() -> None:
    slow = plan_trials(result(step_ms=60_000.0, status="stopped"), None, 300.0)
    assert slow.min_steps == LEAD + SLOW_STEPS
    usual = plan_trials(result(step_ms=500.0, status="stopped"), None, 300.0)
    assert usual.min_steps == LEAD + LEAST_STEPS
    fast = plan_trials(result(step_ms=0.001, status="stopped"), None, 300.0)
    assert fast.min_steps == fast.max_steps == MOST_STEPS


def test_what_workers_read_ahead_is_left_out_of_the_window() -> None:
    rule = with_read_ahead(PROBE, {"loader_workers": 8})
    assert rule.warmup_steps >= 16
    assert rule.min_steps - rule.warmup_steps == PROBE.min_steps - PROBE.warmup_steps
    more = with_read_ahead(PROBE, {"loader_workers": 8, "loader_prefetch": 4})
    assert more.warmup_steps >= 32
    assert with_read_ahead(PROBE, {}) == PROBE


def test_a_small_budget_shortens_the_windows() -> None:
    probe = result(step_ms=10.0, status="stopped")
    assert plan_trials(probe, None, 60.0).min_steps < plan_trials(probe, None, 300.0).min_steps
    assert plan_trials(probe, None, 1.0).min_steps * 0.010 >= 1.5


def test_a_trial_is_long_enough_for_the_counter_of_joules_where_energy_counts() -> None:
    probe = result(step_ms=50.0, status="stopped")
    energy = plan_trials(probe, None, 60.0, Objective.ENERGY)
    assert energy.min_seconds >= 2 * ENERGY_SECONDS
    assert energy.min_steps == plan_trials(probe, None, 60.0).min_steps


def test_a_budget_is_proposed_in_whole_minutes() -> None:
    assert budget_flag(61.0) == "--budget 2m"
    assert budget_flag(1.0) == "--budget 1m"
