"""The budget: the search has half of what the script as it is leaves, and nothing is foretold."""

from __future__ import annotations

import time

import pytest

from gpurun.tuner.phases import Phases
from gpurun.tuner.tuning_trial import Trial
from tests.unit.tuner_trials import trial


def phases(seconds: float, usual: float = 10.0) -> Phases:
    """A search that begins with so many seconds left, after a plain launch of `usual`."""
    found = Phases(time.monotonic() + seconds)
    found.baseline(trial(100.0, seconds=usual))
    found.search_begins()
    return found


def spent(found: Phases, seconds: float) -> None:
    found.deadline -= seconds
    found._end -= seconds


def failed(seconds: float) -> Trial:
    return trial(None, {"a": 1}, seconds=seconds)


def test_the_search_has_half_of_what_the_script_as_it_is_left() -> None:
    times = Phases(time.monotonic() + 300.0)
    spent(times, 100.0)
    times.search_begins()
    assert times.left == pytest.approx(200.0, abs=1.0)
    assert times.left_of_phase == pytest.approx(100.0, abs=1.0)
    times.search_ends()
    assert times.left_of_phase == pytest.approx(200.0, abs=1.0), "proof and rungs have the rest"


def test_a_budget_that_is_spent_leaves_the_search_nothing() -> None:
    times = Phases(time.monotonic() - 10.0, budget=60.0)
    times.search_begins()
    assert times.left_of_phase <= 0.0
    assert not times.room(compiled=False)
    assert times.spent == pytest.approx(70.0, abs=1.0)


def test_a_plain_launch_is_begun_if_one_like_the_script_as_it_is_would_fit() -> None:
    times = phases(40.0, usual=15.0)
    times.launched(trial(200.0, seconds=0.0), compiled=False)
    assert times.room(compiled=False)
    spent(times, 6.0)
    assert not times.room(compiled=False)


def test_as_long_as_nothing_was_measured_a_plain_launch_may_take_the_proofs_time() -> None:
    times = phases(80.0, usual=20.0)
    spent(times, 40.0)
    assert times.left_of_phase <= 0.0
    assert not times.room(compiled=True)
    assert not times.room(compiled=False), "a pair of two would not fit behind it"
    times = phases(140.0, usual=20.0)
    spent(times, 70.0)
    times.launched(failed(70.0), compiled=True)
    assert times.room(compiled=False)
    times.launched(trial(200.0, seconds=20.0), compiled=False)
    assert not times.room(compiled=False), "there is something to prove"


def test_a_first_launch_that_may_compile_is_begun_if_two_plain_ones_would_fit() -> None:
    assert phases(100.0, usual=24.0).room(compiled=True)
    assert not phases(100.0, usual=26.0).room(compiled=True)


@pytest.mark.parametrize(("took", "room"), [(45.0, False), (12.0, True)])
def test_a_later_one_by_what_the_last_of_its_kind_took(took: float, room: bool) -> None:
    times = phases(80.0, usual=15.0)
    times.launched(trial(200.0, seconds=took), compiled=True)
    assert times.room(compiled=True) is room
    assert times.room(compiled=False)


def test_one_that_failed_says_nothing_of_how_long_others_take() -> None:
    times = phases(80.0, usual=15.0)
    times.launched(failed(60.0), compiled=True)
    assert times.room(compiled=True)
    assert (times.tried, times.longest) == (0, 15.0)


def test_what_was_begun_may_take_the_rest_of_the_phase_or_what_two_plain_ones_do() -> None:
    times = phases(200.0, usual=20.0)
    assert times.limit() == pytest.approx(100.0, abs=1.0)
    spent(times, 90.0)
    assert times.limit() == 40.0


def test_a_budget_too_small_is_quoted_as_the_user_gave_it_with_one_that_is_not() -> None:
    times = Phases(time.monotonic() + 38.6, budget=40.0)
    times.baseline(trial(100.0, seconds=30.0))
    assert times.too_small() == (
        "the budget of 40 s left no time to try anything to its end: a trial takes 30 s; "
        "try `--budget 2m`"
    )


def test_a_slow_second_launch_of_the_script_as_it_is_counts_for_patience() -> None:
    """A slow first one does not: it may have downloaded its data."""
    times = Phases(time.monotonic() + 60.0)
    times.baseline(trial(100.0, seconds=10.0), trial(100.0, seconds=30.0))
    assert (times.usual, times.longest, times.patience) == (10.0, 30.0, 120.0)
    times.baseline(trial(100.0, seconds=300.0), trial(100.0, seconds=30.0))
    assert (times.usual, times.longest, times.patience) == (30.0, 30.0, 120.0)


def test_patience_follows_the_budget_and_what_launches_take() -> None:
    by_budget = [phases(seconds, usual=2.0).patience for seconds in (60.0, 120.0, 1200.0, 7200.0)]
    assert by_budget[0] < by_budget[1] < by_budget[2] == by_budget[3]
    slow = phases(60.0, usual=20.0)
    assert slow.patience == 80.0, "a slow script is not taken for one that hangs"
