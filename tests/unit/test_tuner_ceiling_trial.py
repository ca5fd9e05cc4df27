"""When model and loader are measured alone, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun.formatting.finding_sentence import ceilings_sentence
from gpurun.measure.run_events import read_run
from gpurun.measure.training_clock import samples_per_second
from gpurun.records.events import CeilingsEvent
from gpurun.records.facts import Facts
from gpurun.records.tuning import Ceilings, TrialPurpose
from gpurun.report.tuning_progress import outcome_text
from gpurun.report.tuning_verdict import remarks
from gpurun.tuner.loader_trials import ceilings_of
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.unit.knob_facts import facts
from tests.unit.knob_facts import result as step_of
from tests.unit.recorded_runs import MS, START_NS, loader, row, steps, write_events
from tests.unit.report_records import run_result, trial, tuning_report


def waiting(wait_ms: float, **changes: Any) -> Facts:
    """A script at 400 samples/s whose step waits so long for its loader."""
    planned = changes.pop("planned_steps", None)
    measured = step_of(wait_ms, samples_per_second=400.0, **changes)
    return facts(result=measured, planned_steps=planned)


SCRIPT, MODEL = (START_NS, START_NS + 1000 * MS), (START_NS + 1000 * MS, START_NS + 2000 * MS)
"""Windows in which `Launcher` takes 50 and 175 steps of 8 samples."""


class Launcher:
    """Answers with what a trial for the ceilings recorded."""

    def __init__(self, folder: Path, event: CeilingsEvent | None) -> None:
        ends = [20.0 * (i + 1) for i in range(50)] + [
            1000 + 1000 / 175 * (i + 1) for i in range(175)
        ]
        events = [loader(), steps([row(end) for end in ends])]
        write_events(folder, [*events, event] if event is not None else events)
        (self.log,) = read_run(folder).processes
        self.requests: list[TrialRequest] = []

    def __call__(self, request: TrialRequest) -> Trial:
        self.requests.append(request)
        return Trial(trial(3, {}, 1400.0), run_result(), self.log, None)


def test_the_trial_bounds_what_faster_loading_can_gain(tmp_path: Path) -> None:
    launch = Launcher(tmp_path, CeilingsEvent(SCRIPT, MODEL, 900.0))
    found = ceilings_of(waiting(10.0), PROBE, launch)
    assert found == Ceilings(900.0, pytest.approx(1400), pytest.approx(400), pytest.approx(3.5), "")
    (request,) = launch.requests
    assert (request.ceilings, request.stop.audit_steps) == (True, 0)


@pytest.mark.parametrize(
    ("event", "model", "bound", "why"),
    [
        (CeilingsEvent(SCRIPT, MODEL, None, "it is over"), 1400, 3.5, "it is over"),
        (CeilingsEvent(SCRIPT, None, 900.0), None, None, "no batch could be kept"),
        (CeilingsEvent(SCRIPT, SCRIPT, 900.0), 400, 1.0, ""),
        (None, None, None, "the script ended"),
    ],
)
def test_a_side_that_was_not_measured_is_null_with_its_reason(
    tmp_path: Path, event: CeilingsEvent | None, model: float | None, bound: float | None, why: str
) -> None:
    found = ceilings_of(waiting(10.0), PROBE, Launcher(tmp_path, event))
    assert found.model_samples_per_second == (None if model is None else pytest.approx(model))
    assert found.gain_upper_bound == (None if bound is None else pytest.approx(bound))
    assert why in found.reason


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (waiting(0.1), "does not wait"),
        (waiting(10.0, ranks=2), "several ranks"),
        (replace(waiting(10.0), training_loaders=()), "no DataLoader"),
    ],
)
def test_nothing_is_launched_that_would_tell_nothing(tmp_path: Path, seen: Facts, why: str) -> None:
    launch = Launcher(tmp_path, None)
    found = ceilings_of(seen, PROBE, launch)
    assert launch.requests == []
    assert (found.loader_samples_per_second, found.model_samples_per_second) == (None, None)
    assert why in found.reason


def test_a_ceiling_that_the_proof_has_exceeded_is_none(tmp_path: Path) -> None:
    launch = Launcher(tmp_path, CeilingsEvent(SCRIPT, MODEL, 900.0))
    assert ceilings_of(waiting(10.0), PROBE, launch, 1399.0).gain_upper_bound is not None
    found = ceilings_of(waiting(10.0), PROBE, launch, 1401.0)
    assert ceilings_sentence(found) == ""
    assert found.reason == "the changes made the model itself faster"


def test_a_trial_at_another_pace_than_the_others_tells_nothing_of_them(tmp_path: Path) -> None:
    """A data set that keeps what it has read is slow in its first epoch alone."""
    launch = Launcher(tmp_path, CeilingsEvent(SCRIPT, MODEL, 900.0))
    first_epoch = facts(result=step_of(10.0, samples_per_second=60.0))
    found = ceilings_of(first_epoch, PROBE, launch)
    assert (found.gain_upper_bound, ceilings_sentence(found)) == (None, "")
    assert "another pace" in found.reason


def test_the_trial_takes_no_step_beyond_the_last_of_the_training(tmp_path: Path) -> None:
    """A schedule of fixed length raises there."""
    launch = Launcher(tmp_path, None)
    ceilings_of(waiting(10.0, planned_steps=315), PROBE, launch)
    ceilings_of(waiting(10.0), PROBE, launch)
    assert [request.stop.max_steps for request in launch.requests] == [315, PROBE.max_steps]


def test_a_budget_without_room_is_the_reason() -> None:
    assert "budget" in ceilings_of(waiting(10.0), PROBE, None).reason


def test_the_report_tells_what_was_measured_and_no_more() -> None:
    whole = Ceilings(900.0, 1400.0, 410.0, 3.41, "")
    told = ceilings_sentence(whole)
    assert told == (
        "as it is: loader alone 900 samples/s; model alone 1,400 samples/s; "
        "the script 410 samples/s"
    )
    assert told in remarks(replace(tuning_report(), ceilings=whole))
    half = ceilings_sentence(Ceilings(900.0, None, 410.0, None, "no batch could be kept"))
    assert half == "as it is: loader alone 900 samples/s; the script 410 samples/s"
    assert ceilings_sentence(Ceilings(None, None, 410.0, None, "no DataLoader")) == ""


def test_a_device_that_lags_behind_the_host_sets_the_pace(tmp_path: Path) -> None:
    rows = [row(20.0 * (i + 1), device_ms=40.0) for i in range(50)]
    write_events(tmp_path, [loader(), steps(rows)])
    (log,) = read_run(tmp_path).processes
    assert samples_per_second(log, SCRIPT) == pytest.approx(200)


def test_a_trial_for_the_ceilings_ends_well_without_a_speed() -> None:
    ended = trial(3, {}, None, purpose=TrialPurpose.CEILINGS, status="stopped")
    assert outcome_text(ended) == ""
    assert outcome_text(replace(ended, status="failed", reason="it fell over")) == (
        "not measured: it fell over"
    )
