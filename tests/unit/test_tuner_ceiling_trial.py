"""When model and loader are measured alone, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpurun.formatting.ceilings_text import ceilings_sentence
from gpurun.records.events import CeilingsEvent
from gpurun.records.facts import Facts
from gpurun.records.tuning import Ceilings
from gpurun.report.tuning_verdict import remarks
from gpurun.tuner.ceiling_trial import ceilings_of
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.unit.knob_facts import facts
from tests.unit.knob_facts import result as step_of
from tests.unit.report_records import run_result, trial, tuning_report


def waiting(wait_ms: float, **changes: Any) -> Facts:
    """A script at 400 samples/s whose step waits so long for its loader."""
    return facts(result=step_of(wait_ms, samples_per_second=400.0, **changes))


class Launcher:
    """Answers with what a trial for the ceilings recorded."""

    def __init__(self, event: CeilingsEvent | None) -> None:
        self.event = event
        self.requests: list[TrialRequest] = []

    def __call__(self, request: TrialRequest) -> Trial:
        self.requests.append(request)
        log: Any = type("Log", (), {"ceilings": self.event})()
        result = run_result(samples_per_second=1400.0)
        record = trial(3, dict(request.settings), 1400.0)
        return Trial(record, result, log, None, 0)


def test_the_trial_bounds_what_faster_loading_can_gain() -> None:
    launch = Launcher(CeilingsEvent(True, 900.0))
    found = ceilings_of(waiting(10.0), PROBE, launch)
    assert found == Ceilings(900.0, 1400.0, 400.0, 3.5, "")
    (request,) = launch.requests
    assert (request.ceilings, request.stop.audit_steps) == (True, 0)


def test_a_side_that_was_not_measured_is_null_with_its_reason() -> None:
    found = ceilings_of(waiting(10.0), PROBE, Launcher(CeilingsEvent(True, None, "it is over")))
    assert found == Ceilings(None, 1400.0, 400.0, 3.5, "it is over")
    found = ceilings_of(waiting(10.0), PROBE, Launcher(CeilingsEvent(False, 900.0)))
    assert found == Ceilings(900.0, None, 400.0, None, "no batch could be kept")
    found = ceilings_of(waiting(10.0), PROBE, Launcher(None))
    assert found.gain_upper_bound is None
    assert found.reason


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (waiting(0.1), "does not wait"),
        (waiting(10.0, ranks=2), "several ranks"),
        (replace(waiting(10.0), training_loaders=()), "no DataLoader"),
    ],
)
def test_nothing_is_launched_that_would_tell_nothing(seen: Facts, why: str) -> None:
    launch = Launcher(CeilingsEvent(True, 900.0))
    found = ceilings_of(seen, PROBE, launch)
    assert launch.requests == []
    assert (found.loader_samples_per_second, found.model_samples_per_second) == (None, None)
    assert why in found.reason


def test_a_budget_without_room_is_the_reason() -> None:
    assert "budget" in ceilings_of(waiting(10.0), PROBE, None).reason


def test_the_report_tells_what_was_measured_and_no_more() -> None:
    whole = Ceilings(900.0, 1400.0, 410.0, 3.41, "")
    told = ceilings_sentence(whole)
    assert told == (
        "loader alone 900 samples/s; model alone 1,400 samples/s; the script 410 samples/s. "
        "Faster loading gains at most 3.41×"
    )
    assert told in remarks(replace(tuning_report(), ceilings=whole))
    half = ceilings_sentence(Ceilings(900.0, None, 410.0, None, "no batch could be kept"))
    assert half == "loader alone 900 samples/s; the script 410 samples/s"
    assert ceilings_sentence(Ceilings(None, None, 410.0, None, "no DataLoader")) == ""
