"""Trials beside a reference: which failures are believed, and when there is none any more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpurun.records.failure import Failure, FailureKind
from gpurun.records.tuning import TrialPurpose
from gpurun.tuner.search.live_reference import ENDED, LiveReference
from gpurun.tuner.search.search_state import gain_over
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.unit.knob_facts import result
from tests.unit.tuner_trials import trial as finished

SCREEN = TrialRequest(TrialPurpose.SCREEN, {"tf32": True}, PROBE)


class Series:
    """Stands for the trials of a tuning: a reference that starts, or does not."""

    def __init__(self) -> None:
        self.live = self
        self.has_reference = False
        self.started = 0
        self.refuses = ""

    def start_reference(self, request: TrialRequest, samples_a_step: float) -> str:
        assert not request.stop.audit_steps, "nobody reads its audits"
        self.started += 1
        self.has_reference = not self.refuses
        return self.refuses

    def end_reference(self) -> None:
        self.has_reference = False


class Launches:
    """What trials give, one after another; `in_turns` notes which were beside the reference."""

    def __init__(self, *coming: Trial) -> None:
        self._coming = list(coming)
        self.in_turns: list[bool] = []

    def __call__(self, request: TrialRequest) -> Trial:
        self.in_turns.append(request.in_turns)
        return self._coming.pop(0)


def beside(gain: float | None) -> Trial:
    trial = finished(100.0)
    return replace(trial, record=replace(trial.record, gain_over_reference=gain))


BASE = beside(1.0)


def failed(kind: FailureKind) -> Trial:
    return replace(finished(100.0), failure=Failure(kind, "it failed"))


def started(series: Series, launches: Launches) -> tuple[LiveReference, list[str]]:
    notes: list[str] = []
    any_series: Any = series
    reference = LiveReference(any_series, launches, notes.append)
    assert reference.start(finished(90.0), PROBE, 60.0, "") is not bool(series.refuses)
    return reference, notes


@pytest.mark.parametrize("purpose", [TrialPurpose.SCREEN, TrialPurpose.RUNG])
def test_trials_of_the_search_and_rungs_take_turns_with_it(purpose: TrialPurpose) -> None:
    launches = Launches(beside(1.5))
    reference, _ = started(Series(), launches)
    assert reference.run(replace(SCREEN, purpose=purpose)).gain == 1.5
    assert launches.in_turns == [True]


def test_what_took_turns_and_all_rungs_are_known_when_the_rungs_are_measured() -> None:
    lost, screen, rung = beside(None), beside(1.5), failed(FailureKind.HUNG)
    reference, _ = started(Series(), Launches(lost, screen, rung))
    for purpose in (TrialPurpose.SCREEN, TrialPurpose.SCREEN, TrialPurpose.RUNG):
        reference.run(replace(SCREEN, purpose=purpose))
    assert reference.trials == [screen, rung]


def test_without_a_reference_trials_run_alone_and_their_rates_are_compared() -> None:
    series, launches = Series(), Launches(finished(180.0))
    series.refuses = "the script runs in several ranks"
    reference, notes = started(series, launches)
    assert gain_over(reference.run(SCREEN), finished(90.0)) == pytest.approx(2.0)
    assert launches.in_turns == [False]
    assert notes == ["one trial is launched after the other: the script runs in several ranks"]


def test_the_first_failure_beside_it_is_repeated_alone_and_ends_it() -> None:
    """A fixed port, a lock, named shared memory: such scripts run only once at a time."""
    series, launches = Series(), Launches(failed(FailureKind.EXCEPTION), finished(120.0))
    reference, notes = started(series, launches)
    assert reference.run(SCREEN).failure is None
    assert launches.in_turns == [True, False]
    assert not series.has_reference
    assert "launched alone" in notes[0]


def test_what_fails_alone_as_well_is_no_reason_to_go_on_without_a_reference() -> None:
    """CUDA graphs that the model cannot take: all later trials were compared across minutes."""
    series = Series()
    launches = Launches(*[failed(FailureKind.EXCEPTION)] * 2, beside(1.5), failed(FailureKind.HUNG))
    reference, _ = started(series, launches)
    assert reference.run(SCREEN).failure is not None
    assert gain_over(reference.run(SCREEN), BASE) == pytest.approx(1.5)
    assert reference.run(SCREEN).failure is not None
    assert (series.started, launches.in_turns) == (2, [True, False, True, True])


def test_a_trial_that_cannot_take_turns_is_launched_alone_and_later_ones_beside_it() -> None:
    """It trains in several processes, or waits for what the frozen reference holds."""
    series = Series()
    launches = Launches(failed(FailureKind.NOT_LIVE), finished(120.0), beside(1.5))
    reference, _ = started(series, launches)
    assert reference.run(SCREEN).failure is None
    assert gain_over(reference.run(SCREEN), BASE) == pytest.approx(1.5)
    assert (series.started, launches.in_turns) == (2, [True, False, True])


def test_after_a_trial_that_fails_alone_as_well_a_hang_costs_its_patience_once() -> None:
    """Workers that hang: the set, and then they alone, hung beside the script and without it."""
    launches = Launches(*[failed(FailureKind.HUNG)] * 4)
    reference, _ = started(Series(), launches)
    for _ in range(3):
        assert reference.run(SCREEN).failure is not None
    assert launches.in_turns == [True, False, True, True]


def test_once_a_trial_has_worked_beside_it_failures_are_believed_but_for_memory() -> None:
    launches = Launches(
        beside(1.1),
        failed(FailureKind.EXCEPTION),
        failed(FailureKind.OUT_OF_MEMORY),
        finished(120.0),
    )
    reference, _ = started(Series(), launches)
    assert [reference.run(SCREEN).failure is None for _ in range(3)] == [True, False, True]
    assert launches.in_turns == [True, True, True, False]


def test_a_reference_that_came_to_its_end_is_launched_again_if_it_was_of_use() -> None:
    series, launches = Series(), Launches(*[beside(1.1)] * 2, *[finished(100.0)] * 2)
    reference, _ = started(series, launches)
    reference.run(SCREEN)
    series.has_reference = False
    reference.run(SCREEN)
    assert (series.started, launches.in_turns) == (2, [True, True])
    for _ in range(2):
        series.has_reference = False
        reference.run(SCREEN)
    assert series.started == 3, "it was launched for nothing once, and not again"


def test_a_reference_that_ended_beside_a_trial_is_told() -> None:
    series = Series()

    def ends_with_it(request: TrialRequest) -> Trial:
        series.has_reference = False
        return finished(100.0)

    any_launches: Any = ends_with_it
    reference, notes = started(series, any_launches)
    reference.run(SCREEN)
    assert notes == [ENDED]


def test_other_trials_than_those_of_the_search_run_alone() -> None:
    launches = Launches(finished(100.0))
    reference, _ = started(Series(), launches)
    reference.run(replace(SCREEN, purpose=TrialPurpose.ROUNDING))
    assert launches.in_turns == [False]


@pytest.mark.parametrize(
    ("step_ms", "obstacle", "why"),
    [
        (600.0, "", "its steps are slow"),
        (40.0, "both sides together do not fit in memory", "do not fit in memory"),
        (400.0, "", ""),
    ],
)
def test_slow_steps_and_what_keeps_two_apart_leave_trials_alone(
    step_ms: float, obstacle: str, why: str
) -> None:
    notes: list[str] = []
    series: Any = Series()
    reference = LiveReference(series, Launches(), notes.append)
    as_it_is = replace(finished(90.0), result=result(step_ms=step_ms))
    assert reference.start(as_it_is, PROBE, 60.0, obstacle) is not bool(why)
    assert series.started == (not why)
    assert [why in note for note in notes] == [True] * bool(why)
