"""The full run is held against what the tuning promised."""

from __future__ import annotations

from dataclasses import replace

from gpurun.records.result import StepTime
from gpurun.records.tuning import SavedSettings
from gpurun.report.run_summary_text import promise_sentence
from tests.unit.report_records import run_result, unmeasured_result

PROMISED = SavedSettings(
    {"tf32": True}, (), 5.6, {}, ("train.py",), baseline_samples_per_second=100.0
)


def test_a_run_is_held_against_the_promise() -> None:
    assert promise_sentence(PROMISED, run_result(samples_per_second=540.0)) == (
        "promised 5.60×, running 5.40× "
        "(540 samples/s against 100 of the script as it is while tuning)"
    )


def test_steps_count_where_samples_cannot_be_counted() -> None:
    pace = StepTime(2.0, 2.0, 2.0, 2.0)
    told = promise_sentence(PROMISED, run_result(samples_per_second=None, step_time_ms=pace))
    assert told is not None
    assert "running 5.00×" in told


def test_nothing_is_said_where_nothing_was_promised_or_measured() -> None:
    assert promise_sentence(PROMISED, unmeasured_result()) is None
    by_hand = replace(PROMISED, baseline_samples_per_second=None)
    assert promise_sentence(by_hand, run_result()) is None
    assert promise_sentence(replace(PROMISED, speedup=None), run_result()) is None
