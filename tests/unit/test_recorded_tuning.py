"""A whole tuning recorded on an H200 (twelve trials of SimpleNet), judged again from its trials.

Which trials a search asks for may change; what they tell may not: their figures, what the proof and
the loss guard make of them, the verdict and the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun.arguments.gpurun_toml import ReportConfig
from gpurun.arguments.main_flags import parse
from gpurun.formatting.knob_text import knobs_text
from gpurun.knobs.api import Effect
from gpurun.measure.run_events import read_run
from gpurun.pairs.engine import Pair
from gpurun.records.codec import to_json
from gpurun.records.tuning import PAIR_SIDES, Proof, TrialPurpose, TuningReport
from gpurun.report.page.markdown_page import markdown_page
from gpurun.report.page.run_contents import RunContents
from gpurun.report.page.run_page import run_page
from gpurun.same.verdict import judge
from gpurun.stats.descriptive import geometric_mean
from gpurun.tuner import tuning_document as document_of
from gpurun.tuner.proof.final_selection import FinalSelection
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.proof.proof_launches import gain_of
from gpurun.tuner.search.search_state import SearchState
from gpurun.tuner.tuning_findings import TuningFindings
from gpurun.tuner.tuning_trial import Trial
from tests.recordings import CORES, assert_close, document, unpacked
from tests.unit.knob_facts import facts
from tests.unit.recorded_tunings import concluded, report_of
from tests.unit.report_records import ladder_lines
from tests.unit.tuner_trials import judge_of


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("simplenet_tuning", tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="module")
def told(recorded: Path) -> TuningReport:
    return report_of(recorded)


@pytest.fixture(scope="module")
def trials(recorded: Path, told: TuningReport) -> list[Trial]:
    """Every trial concluded again, as the tuner does when it has ended."""
    return concluded(recorded, told)


def settled(told: TuningReport, trials: list[Trial]) -> TuningFindings:
    """The end of the tuning, its launches answered by what was recorded of each round's sides."""
    screened, waiting = trials[:4], trials[4:]
    findings = TuningFindings(probe=trials[0], decisions=list(told.decisions))

    def launch(purpose: TrialPurpose, settings: Mapping[str, Any], number: int) -> Trial:
        trial = next(t for t in waiting if t.record.purpose is purpose)
        waiting.remove(trial)
        assert trial.record.knobs == dict(settings)
        assert trial.evidence is not None
        assert trial.evidence.seed == number, "both of a pair share a seed"
        return trial

    def proven(finalist: Finalist, rungs: bool) -> Finalist:
        baseline = finalist.against = Finalist("baseline", {})
        for number in range(len(waiting) // 2):
            sides = zip(PAIR_SIDES, ({}, finalist.settings), strict=True)
            ours, theirs = (launch(purpose, side, number) for purpose, side in sides)
            assert baseline.launched(ours)
            assert finalist.launched(theirs)
            finalist.paired(baseline.rates[-1], gain_of(Pair(ours, theirs)), None)
        return baseline

    assert told.chosen is not None
    judge = judge_of(*(t.evidence for t in screened[:2]))
    state = SearchState(dict(told.chosen.knobs), screened[3], facts(), judge)
    effect_of = {knob: Effect(row.effect) for row in told.ladder for knob in row.changes}
    selection = FinalSelection(findings, judge, effect_of.__getitem__, proven, lambda _: None)
    selection.settle(state)
    assert not waiting, "every recorded launch was asked for"
    return findings


def judged_again(told: TuningReport) -> Proof:
    """What today's test says of the recorded pairs."""
    assert told.proof is not None
    proof = document_of.proof_of(Finalist("again", {}, pairs=list(told.proof.pairs)))
    assert proof is not None
    return proof


def test_every_trial_is_summed_up_to_what_was_recorded_of_it(
    recorded: Path, told: TuningReport, trials: list[Trial], tmp_path: Path
) -> None:
    again = unpacked("simplenet_tuning", tmp_path)
    as_told = document(again / "tuning.json")["trials"]
    for trial, record, written in zip(trials, told.trials, as_told, strict=True):
        assert_close(to_json(trial.record), written)
        before = document(again / record.run_dir / "result.json")
        figures = to_json(trial.result)
        assert_close({name: figures[name] for name in before}, before)


def test_the_recorded_pairs_prove_the_same_speedup(told: TuningReport, trials: list[Trial]) -> None:
    findings = settled(told, trials)
    assert findings.verdict == told.verdict == "faster"
    assert findings.chosen is not None
    found = document_of.proof_of(findings.chosen)
    assert found is not None
    assert found == judged_again(told)
    assert len(found.pairs) == 4
    assert_close(found.speedup, told.speedup)
    assert found.statistically_significant
    # (3.23, 8.24), p = 0.0013, and settled when it was recorded
    assert found.speedup_confidence_interval == pytest.approx((3.33, 7.99), abs=0.01)
    assert found.p_value == pytest.approx(0.00033, abs=0.00001)
    assert not found.settled, "launches on that machine differed by 15 %: further pairs are wanted"


def test_the_loss_guard_judges_the_recorded_training_as_it_did(
    told: TuningReport, trials: list[Trial]
) -> None:
    findings = settled(told, trials)
    assert findings.rejections == []
    assert findings.chosen is not None
    guard = findings.chosen.guard
    assert guard is not None
    assert set(guard.compared) == {"samples", "gradients", "losses"}
    curves = guard.curves
    assert curves is not None
    both = zip(curves.lowest, curves.baseline, curves.highest, strict=False)
    assert all(low <= own <= high for low, own, high in both if low and own and high)
    assert told.guard is not None
    # it had another rule for the noise when it was recorded
    before = replace(guard, compared=(), curves=None, noise=told.guard.noise)
    assert_close(to_json(replace(before, distances=())), to_json(told.guard))
    assert max(guard.noise or 1.0, guard.loss_deviation or 1.0) < 1e-4
    worst = guard.distances[0]
    assert worst.compared
    assert (worst.scaled or 0.0) < 1
    assert guard.accepted


def test_the_recorded_candidate_trained_under_another_seed_would_be_rejected(
    trials: list[Trial],
) -> None:
    """The acceptance is no blindness: the curves of two seeds are further apart than rounding."""
    shown = [t.evidence for t in trials if t.evidence is not None]
    other = next(e for t, e in zip(trials, shown, strict=True) if t.record.knobs and e.seed == 1)
    assert not judge(shown[:2], [replace(other, seed=0)], Effect.NUMERICS).same


def test_the_document_is_the_recorded_one(
    recorded: Path, told: TuningReport, trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_of, "shared_cores", lambda: CORES)
    findings = settled(told, trials)
    report = document_of.tuning_document(
        findings,
        options=parse(["--optimize", *told.command], {}),
        trials=[trial.record for trial in trials],
        isolation=told.isolation,
        fingerprint=told.fingerprint,
        invocation=told.invocation,
        seconds=told.tuning_seconds,
    )
    written = document(recorded / "tuning.json")
    del written["guard"]["curves"], written["guard"]["noise"]  # made by other rules
    again = judged_again(told)
    written["proof"] = to_json(again)
    written["speedup_confidence_interval"] = list(again.speedup_confidence_interval or ())
    written["p_value"] = again.p_value
    base = geometric_mean([base for base, _ in again.pairs])
    # these were means over launches when it was recorded; now they are what the pairs compared
    written["baseline"]["samples_per_second"] = base
    written["chosen"]["samples_per_second"] = base * (told.speedup or 0.0)
    shown = to_json(report)
    del written["ladder"], shown["ladder"]  # it was recorded a change a row
    assert_close(shown, written)
    kept = {name: value for row in report.ladder if row.kept for name, value in row.changes.items()}
    assert told.chosen is not None
    assert kept == told.chosen.knobs
    assert [(line.where, line.calls) for line in report.waits] == [
        ("simplenet.py:76", {".item()": 1.0})
    ]


def test_the_report_of_a_recorded_tuning_shows_every_change_and_trial(
    told: TuningReport,
) -> None:
    contents = RunContents("run", told.command, tuning=told, trials=told.trials)
    text = markdown_page(run_page([contents], ReportConfig()))
    lines = ladder_lines(told)
    assert "**5.16× faster (95 % interval 3.23–8.24, p = 0.0013, 4 pairs)" in text
    assert any("5.16× faster" in line and "4 pairs" in line for line in lines)
    table = text.split("## Ladder\n\n")[1].split("\n\n")[1].splitlines()
    assert len(table) == 2 + sum(row.kept for row in told.ladder) + 1
    assert "\n* loader\\_workers 4: a better value was found\n" in text
    trials = text.split("## Trials\n\n")[1].split("\n\n")[0].splitlines()
    assert len(trials) == 2 + len(told.trials)
    shown = "\n".join(lines)
    assert all(knobs_text(row.changes) in shown for row in told.ladder if row.changes)
    assert "    loader_workers 4: a better value was found" in lines
    assert "simplenet.py:76" in shown


def test_a_recorded_trial_shows_its_training_to_the_guard(recorded: Path) -> None:
    for run in sorted((recorded / "trials").iterdir()):
        log = read_run(run)
        assert log.notes == ()
        assert [len(process.audits) for process in log.processes] == [8]
