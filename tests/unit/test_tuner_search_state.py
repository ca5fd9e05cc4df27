"""Two trials of a search are compared by their turns with the reference, else by their scores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpurun.records.result import StepTime
from gpurun.tuner.search.search_state import (
    compared,
    gain_over,
    gains,
    loses,
    no_gain,
    seems_to_gain,
    startup_difference,
)
from gpurun.tuner.tuning_trial import Trial
from tests.unit.tuner_searches import in_turns
from tests.unit.tuner_trials import trial


def test_gains_over_the_same_reference_are_compared_whatever_was_measured_alone() -> None:
    one, other = in_turns(1.5, 0.0), in_turns(1.2, 0.0)
    assert gain_over(one, other) == pytest.approx(1.25)
    assert compared(one, other) == "×1.50 against ×1.20"
    alone = trial(180.0)
    assert gain_over(alone, other) == pytest.approx(1.8), "one took no turns: by their rates"
    assert compared(alone, other) == "180 samples/s against 100"


@pytest.mark.parametrize(
    ("gain", "error", "sure", "maybe"),
    [(1.08, 0.02, True, False), (1.08, 0.1, False, True), (1.01, 0.0, False, False)],
)
def test_a_gain_within_the_error_of_the_turns_is_not_sure(
    gain: float, error: float, sure: bool, maybe: bool
) -> None:
    one, base = in_turns(gain, error), in_turns(1.0, 0.0)
    assert (gains(one, base), seems_to_gain(one, base)) == (sure, maybe)
    said = no_gain(one, base)
    assert said.startswith("uncertain: " if maybe else "no gain: ")


def test_a_trial_loses_by_more_than_a_change_is_worth() -> None:
    assert loses(trial(97.0), trial(100.0))
    assert not loses(trial(99.0), trial(100.0))
    assert loses(trial(None), trial(100.0))


def started(seconds: float, step_ms: float) -> Trial:
    found = trial(100.0)
    assert found.result is not None
    pace = StepTime(step_ms, step_ms, step_ms, step_ms)
    return replace(found, result=replace(found.result, startup_seconds=seconds, step_time_ms=pace))


def test_a_slow_start_is_made_good_by_so_many_steps_or_never() -> None:
    assert startup_difference(started(32.0, 5.0), started(2.0, 10.0)) == (30.0, 6000)
    assert startup_difference(started(32.0, 5.0), started(2.0, 5.0)) == (30.0, None)
    assert startup_difference(trial(None), started(2.0, 5.0)) == (None, None)
