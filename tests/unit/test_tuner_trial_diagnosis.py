"""Findings of trials: which knobs come first, what the rows answer, what the report says."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gpurun.diagnoses.api import Diagnosis
from gpurun.diagnoses.diagnosis_report import all_diagnoses
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.knobs import all_knobs, find
from gpurun.knobs.api import Knob
from gpurun.records.codec import to_json
from gpurun.records.finding import Finding, FindingType
from gpurun.records.messages.turns import ORDERS
from gpurun.records.result import HostUse, StepSplit
from gpurun.records.tuning import TrialPurpose, TrialRecord
from gpurun.report.tuning_verdict import activity_sentences
from gpurun.rundir import write_json
from gpurun.tuner.trial_series import TrialSeries
from gpurun.tuner.tuning_findings import TrialDiagnoses, answered_by, by_findings, serious
from tests.unit.diagnosis_cases import result
from tests.unit.recorded_runs import loader, root, steady, write_events
from tests.unit.report_records import ladder_lines, tuning_report
from tests.unit.tuner_trials import trial

TRIAL = trial(100.0).record


def finding(kind: FindingType, severity: float = 0.8, gain: float | None = 2.0) -> Finding:
    return Finding(kind, severity, f"it is {kind.value}", (), None, (), None, gain)


def test_knobs_that_answer_a_finding_are_tried_first_in_their_order() -> None:
    knobs = list(all_knobs())
    waits = [finding(FindingType.DATA_LOADING)]
    order = [knob.name for knob in by_findings(knobs, waits)]
    first = [knob.name for knob in knobs if FindingType.DATA_LOADING in knob.answers]
    assert order[: len(first)] == first
    assert order[len(first) :] == [knob.name for knob in knobs if knob.name not in first]
    assert by_findings(knobs, []) == knobs


def test_a_knob_answers_the_most_severe_finding_that_it_can() -> None:
    seen = [
        finding(FindingType.HOST_BOUND),
        finding(FindingType.MEMORY_BANDWIDTH, 0.6),
        finding(FindingType.LAUNCH_BOUND, 0.5),
    ]
    assert answered_by(find("compile"), seen) is seen[1]
    assert answered_by(find("loader_workers"), seen) is None
    assert serious([*seen, finding(FindingType.THROTTLING, 0.3)]) == seen


def test_what_is_left_is_told_by_a_trial_that_was_not_frozen_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frozen side uses half of a core: its loader seemed to wait for storage."""
    settings = {"loader_workers": 3}
    of_pair = dataclasses.replace(TRIAL, purpose=TrialPurpose.PAIR_CANDIDATE, knobs=settings)
    alone = dataclasses.replace(TRIAL, purpose=TrialPurpose.SCREEN, knobs=settings)
    looked_at: list[TrialRecord] = []
    monkeypatch.setattr(TrialDiagnoses, "of", lambda self, record: looked_at.append(record))
    for trials in ([alone, of_pair], [of_pair], []):
        series = cast(TrialSeries, SimpleNamespace(trials=trials))
        TrialDiagnoses(series, Thresholds()).under(settings)
    assert looked_at == [alone, of_pair]


@pytest.mark.parametrize(("took_turns", "cause"), [(False, "idle"), (True, "not_measured")])
def test_the_processor_tells_nothing_of_a_launch_that_was_frozen_half_of_the_time(
    took_turns: bool, cause: str, tmp_path: Path
) -> None:
    """Three workers on two cores: computing, where a half of it went to the partner's turns."""
    use = HostUse(50.0, 2.0, 1 << 30, 4, steady_cpu_percent=50.0)
    waits = result(StepSplit(8.0, None, 1.0, 0.6, 0.2, 0.2), host=use)
    write_events(tmp_path, [loader(workers=3), root(), steady(60, step_ms=10, data_ms=8)])
    write_json(tmp_path / "result.json", to_json(waits))
    if took_turns:
        (tmp_path / "control").mkdir()
        os.mkfifo(tmp_path / "control" / ORDERS)
    series = cast(TrialSeries, SimpleNamespace(folder_of=lambda record: tmp_path))
    found = TrialDiagnoses(series, Thresholds()).of(TRIAL)
    assert {e.name: e.value for e in found[0].evidence}["cause"] == cause


@pytest.mark.parametrize("diagnosis", all_diagnoses(), ids=lambda each: each.type.value)
def test_the_knob_that_a_diagnosis_names_answers_it(diagnosis: Diagnosis) -> None:
    text = inspect.getsource(diagnosis.look)
    named = {
        knob for line in re.findall(r"knob=(.*)", text) for knob in re.findall(r'"(\w+)"', line)
    }
    for name in named:
        knob: Knob = find(name)
        assert diagnosis.type in knob.answers, f"{name} is to answer {diagnosis.type.value}"


def test_the_report_says_what_still_holds_the_script_back() -> None:
    report = tuning_report()
    left = (finding(FindingType.HOST_BOUND, gain=1.3), finding(FindingType.TOPOLOGY, 0.2))
    assert report.baseline is not None
    assert report.chosen is not None
    report = dataclasses.replace(
        report,
        findings_left=left,
        baseline=dataclasses.replace(report.baseline, gpu_utilization_percent=31.2),
        chosen=dataclasses.replace(report.chosen, gpu_utilization_percent=71.0),
    )
    assert activity_sentences(report) == [
        "GPU activity 31 % → 71 %, still below 85 %",
        "still: it is host_bound (at most 1.30×)",
    ]
    assert activity_sentences(dataclasses.replace(report, verdict="no_gain")) == []


def test_the_report_says_when_the_gain_was_proven() -> None:
    lines = ladder_lines(dataclasses.replace(tuning_report(), proof_seconds=65.0))
    assert any("proven after 1 min 05 s" in line for line in lines)
