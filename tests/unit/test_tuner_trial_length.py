"""How long trials are: whole short epochs, never more steps than the script has."""

from __future__ import annotations

import pytest
from gpurun.tuner.proof.time_for_proof import kept_for_proof

from gpurun.arguments.options import Objective
from gpurun.measure.resource_use import ENERGY_SECONDS
from gpurun.pairs.expected_seconds import SideSeconds, live_pair_seconds
from gpurun.trials.stop_rules import LEAST_STEPS, MOST_STEPS
from gpurun.tuner.trial_length import (
    AUDIT_STEPS,
    PROBE,
    SLOW_STEPS,
    WARMUP_STEPS,
    budget_flag,
    patience,
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


def test_the_search_leaves_most_of_a_small_budget_and_four_rounds_of_a_large_one() -> None:
    assert kept_for_proof(8.0, budget_seconds=300.0, live=False) == 32.0
    assert kept_for_proof(12.0, budget_seconds=60.0, live=False) == 36.0
    assert kept_for_proof(40.0, budget_seconds=60.0, live=False) == 80.0


def test_three_live_pairs_are_kept_and_two_where_those_take_most_of_the_budget() -> None:
    assert kept_for_proof(20.0, budget_seconds=300.0, live=True) == 60.0
    assert kept_for_proof(40.0, budget_seconds=120.0, live=True) == 80.0


def test_a_live_pair_takes_the_longer_start_where_both_have_cores_and_else_the_sum() -> None:
    one, other = SideSeconds(10.0), SideSeconds(30.0)
    alone = live_pair_seconds(one, other, together=True, on_gpu=True)
    assert 30.0 < alone < 30.0 + 20.0
    assert live_pair_seconds(one, other, together=False, on_gpu=True) == alone + 10.0


def test_a_live_pair_waits_for_epochs_that_are_not_too_long() -> None:
    usual = live_pair_seconds(SideSeconds(3.0), SideSeconds(3.0), together=False, on_gpu=True)
    for epoch, more in ((0.5, 0.0), (2.0, 3.0), (20.0, 0.0)):
        sides = SideSeconds(3.0, epoch=epoch), SideSeconds(3.0, epoch=epoch / 2)
        assert live_pair_seconds(*sides, together=False, on_gpu=True) == usual + more


def test_slow_steps_make_the_turns_of_a_pair_longer() -> None:
    quick = live_pair_seconds(
        SideSeconds(10.0, 0.001), SideSeconds(10.0, 0.001), together=True, on_gpu=True
    )
    slow = live_pair_seconds(
        SideSeconds(10.0, 0.3), SideSeconds(10.0, 0.1), together=True, on_gpu=True
    )
    assert slow > quick + 8.0


@pytest.mark.parametrize(("error", "more"), [(None, 0.0), (0.01, 0.0), (0.1, 10.0)])
def test_turns_of_sides_that_scattered_before_go_on_as_long_as_they_may(
    error: float | None, more: float
) -> None:
    side = SideSeconds(10.0, 0.002)
    usual = live_pair_seconds(side, side, together=True, on_gpu=True)
    assert live_pair_seconds(side, side, together=True, on_gpu=True, error=error) == usual + more


def test_patience_follows_the_budget_and_what_launches_take() -> None:
    assert patience(60.0, 2.0) < patience(120.0, 2.0) < patience(1200.0, 2.0)
    assert patience(1200.0, 2.0) == patience(7200.0, 2.0)
    assert patience(60.0, 20.0) == 80.0, "a slow script is not taken for one that hangs"
    assert patience(60.0, 2.0, startup_seconds=20.0) == 120.0


def test_a_budget_is_proposed_in_whole_minutes() -> None:
    assert budget_flag(61.0) == "--budget 2m"
    assert budget_flag(1.0) == "--budget 1m"
