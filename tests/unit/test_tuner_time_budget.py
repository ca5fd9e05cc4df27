"""What launches take, as far as earlier ones tell, and what a budget leaves room for."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.measure.run_events import ProcessLog
from gpurun.records.events import EpochEvent, ProcessEvent
from gpurun.tuner.search.screening import StartupSeconds
from gpurun.tuner.time_budget import TimeBudget
from gpurun.tuner.tuning_trial import Trial
from tests.unit.tuner_trials import trial

NUMBERS = itertools.count(1)


def launch(rate: float, seconds: float, to_data: float, **knobs: str) -> Trial:
    """A trial that took so long, and so long to its first batch."""
    found = trial(rate, knobs, number=next(NUMBERS))
    process = ProcessEvent(1, None, None, None, ("train.py",), "3.12", 0, clock_ns=10**9)
    began = EpochEvent(0, "begin", process.clock_ns + int(to_data * 1e9), None, None)
    log = ProcessLog(Path("events.jsonl"), process, epochs=(began,))
    return replace(found, record=replace(found.record, seconds=seconds), log=log)


def timetable(budget: float) -> TimeBudget:
    return TimeBudget(time.monotonic() + budget, lambda knob: knob == "compile")


def test_the_budget_is_quoted_as_the_user_gave_it_though_some_of_it_is_spent() -> None:
    times = TimeBudget(time.monotonic() + 38.6, lambda knob: False, budget=40.0)
    assert times.too_small().startswith("the budget of 40 s left no time")
    assert times.spent == pytest.approx(1.4, abs=0.1)


def test_a_launch_is_shorter_by_what_a_process_started_early_has_imported() -> None:
    times = timetable(120)
    assert times.usual == 0.0
    times.baseline(launch(100, 13.0, to_data=8.0), started_early=True)
    times.launched(launch(400, 6.5, to_data=0.5), started_early=True)
    assert times.usual == pytest.approx(13.0 - 7.5)
    times.launched(launch(400, 20.0, to_data=7.5), started_early=True)
    assert times.usual == pytest.approx(13.0 - 7.5), "one that did not is no reason to forget it"


def test_what_was_compiled_once_is_launched_faster_again() -> None:
    times = timetable(120)
    times.baseline(launch(100, 6.0, to_data=1.0), started_early=False)
    assert times.again(launch(200, 7.0, to_data=1.0)) == 7.0
    first = launch(200, 36.0, to_data=1.0, compile="default")
    times.launched(first, started_early=False)
    assert 6.0 < times.again(first) < 36.0


def test_what_found_all_compiled_is_launched_no_faster_the_next_time() -> None:
    times = timetable(120)
    times.baseline(launch(100, 5.0, to_data=0.4), started_early=False)
    for found in (
        launch(600, 19.0, to_data=0.9, compile="default", loader_workers="14"),
        second := launch(700, 9.0, to_data=0.8, compile="default", loader_workers="28"),
    ):
        times.launched(found, started_early=False)
    assert times.again(second) == 9.0
    other = launch(700, 12.0, to_data=0.8, compile="reduce-overhead")
    assert times.again(other) < 12.0, "another mode is compiled anew"


def test_the_search_leaves_half_of_what_the_script_as_it_is_left_to_the_proof_of_a_find() -> None:
    times = timetable(100)
    times.deadline -= 20.0  # spent by now
    times.baseline(launch(100, 8.0, to_data=1.0), started_early=False)
    times.launched(best := launch(900, 8.0, to_data=1.0), started_early=False)
    assert not times.no_room_to_search(best, StartupSeconds(first=31.0))
    assert times.no_room_to_search(best, StartupSeconds(first=33.0))


def test_a_pair_is_expected_to_take_what_the_last_one_took() -> None:
    times = timetable(100)
    times.baseline(whole := launch(100, 8.0, to_data=1.0), started_early=False)
    assert times.round_of(whole) == 16.0, "a launch of each side, as long as there was none"
    times.pair_seconds = 21.0
    assert times.round_of(whole) == 21.0


def test_something_is_tried_however_slow_the_script_is() -> None:
    """A GPT of 96 sequences, checkpointed to fit: 70 s a trial, no room after three."""
    times = timetable(280)
    times.baseline(baseline := launch(37, 70.0, to_data=1.0), started_early=False)
    assert not times.no_room_to_search(baseline, StartupSeconds(first=40.0, later=1.0))
    assert times.no_room_to_search(baseline, StartupSeconds(first=75.0, later=1.0))
    beside = replace(baseline, record=replace(baseline.record, gain_over_reference=1.0))
    assert not times.no_room_to_search(beside, StartupSeconds(first=40.0)), "it is the same"
    assert times.screen_limit() == pytest.approx(140.0, abs=1.0), "so long it may take"
    times.launched(launch(38, 70.0, to_data=1.0), started_early=False)
    times.deadline -= 100.0  # spent by now
    assert times.no_room_to_search(baseline, StartupSeconds(first=40.0, later=1.0)), "only at first"


def test_a_trial_of_the_search_gets_a_share_of_the_budget_and_leaves_the_proof_its_own() -> None:
    times = timetable(200)
    times.baseline(launch(100, 6.0, to_data=1.0), started_early=False)
    assert times.screen_limit() == pytest.approx(80.0, abs=1.0)
    nearly_over = timetable(60)
    nearly_over.deadline -= 20.0  # spent by now
    nearly_over.baseline(launch(100, 10.0, to_data=1.0), started_early=False)
    nearly_over.launched(launch(100, 10.0, to_data=1.0), started_early=False)
    assert nearly_over.screen_limit() == pytest.approx(24.0, abs=1.0), "a pair can begin"


def test_a_trial_takes_nothing_of_what_is_kept_for_the_proof_of_a_find() -> None:
    """Seen: a slower setting took 20 s of the 60 s left, and one live pair was measured."""
    times = timetable(200)
    times.baseline(launch(100, 6.0, to_data=1.0), started_early=False)
    times.launched(best := launch(150, 6.0, to_data=1.0), started_early=False)
    times.deadline -= 80.0  # spent by now
    assert not times.no_room_to_search(best, StartupSeconds())
    assert times.screen_limit() == pytest.approx(times.left - 100.0, abs=1.0)
    times.proven = True
    assert times.screen_limit() == pytest.approx(80.0, abs=1.0), "a share of the budget"


def test_what_takes_more_than_its_share_to_start_is_not_even_begun() -> None:
    times = timetable(100)
    times.baseline(baseline := launch(100, 5.0, to_data=1.0), started_early=False)
    assert times.no_room_to_search(baseline, StartupSeconds(first=40.0))
    assert not times.no_room_to_search(baseline, StartupSeconds(first=30.0))


def test_one_disturbed_launch_is_not_believed() -> None:
    """Seen: 40 of 120 s spent, and "no time to try anything" as one trial had taken long."""
    times = timetable(120)
    probe, whole = launch(100, 8.0, to_data=1.0), launch(30, 40.0, to_data=1.0)
    times.baseline(whole, started_early=False, probe=probe)
    assert times.usual < 12.0
    assert not times.no_room_to_search(whole, StartupSeconds())
    times.launched(launch(100, 8.0, to_data=1.0), started_early=False)
    slow = launch(200, 45.0, to_data=1.0)
    times.launched(slow, started_early=False)
    assert times.again(slow) <= 16.0


def test_what_was_given_up_leaves_room_for_a_first_measured_trial() -> None:
    """Seen: 59 of 150 s went to a set that hung, and then "nothing beats the script" was said."""
    times = timetable(60)
    times.baseline(baseline := launch(100, 15.0, to_data=1.0), started_early=False)
    hung = launch(100, 30.0, to_data=1.0)
    record = replace(hung.record, status="timeout", samples_per_second=None)
    times.launched(replace(hung, record=record, result=None), started_early=False)
    times.deadline -= 25.0  # spent by now
    assert not times.no_room_to_search(baseline, StartupSeconds())
    assert "before a trial of other settings was measured, 1 failed; try `" in times.too_small()
    times.launched(baseline, started_early=False)
    times.deadline -= 6.0
    assert times.no_room_to_search(baseline, StartupSeconds()), "now a pair must be able to begin"


def test_only_what_was_found_has_more_than_a_launch_kept_for_it() -> None:
    """Seen: the search ended after 53 of 120 s with nothing found and five knobs untried."""
    times = TimeBudget(time.monotonic() + 120, lambda knob: False)
    times.deadline -= 20.0  # spent by now
    whole = launch(100, 7.0, to_data=1.0)
    times.baseline(whole, started_early=False)
    times.deadline -= 60.0
    times.launched(launch(90, 10.0, to_data=1.0), started_early=False)
    assert not times.no_room_to_search(whole, StartupSeconds())
    times.launched(best := launch(200, 7.0, to_data=1.0), started_early=False)
    assert times.no_room_to_search(best, StartupSeconds())


def test_a_batch_size_to_come_has_its_room_once_something_was_kept() -> None:
    times = timetable(80)
    times.baseline(baseline := launch(100, 5.0, to_data=1.0), started_early=False)
    times.batch_to_come = True
    times.launched(best := launch(900, 20.0, to_data=1.0, compile="default"), started_early=False)
    later = StartupSeconds(first=22.0)
    assert not times.no_room_to_search(baseline, later), "what is likely comes first"
    assert times.no_room_to_search(best, later)
    times.batch_to_come = False
    assert not times.no_room_to_search(best, later)
