"""The document behind `--optimize --json`: what it claims, and what stays null."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpurun.arguments.main_flags import parse
from gpurun.commands import saved_settings
from gpurun.measure.run_events import read_run
from gpurun.records.codec import from_json, to_json
from gpurun.records.events import ValueRead, WaitsEvent
from gpurun.records.result import StepTime
from gpurun.records.tuning import GuardVerdict, LadderRow, Rejection, TuningReport
from gpurun.report.tuning_verdict import remarks, second_epoch_sentence
from gpurun.rundir import json_text
from gpurun.same.launch_audit import LaunchAudit
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.rungs import Rung
from gpurun.tuner.tuning_document import tuning_document
from gpurun.tuner.tuning_findings import TuningFindings
from scripts.generate_schemas import all_schemas
from tests.unit.knob_facts import facts
from tests.unit.recorded_runs import write_events
from tests.unit.report_records import run_result, trial, tuning_report
from tests.unit.tuner_trials import trial as finished

SOUND = GuardVerdict(True, 0.001, 0.002, ())
BROKEN = GuardVerdict(False, None, None, ("the loss diverges",))
BATCH_64 = {"batch_size": 64, "from": 32, "via": "loader", "learning_rate": "linear"}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def finalist(name: str, settings: dict[str, Any], *rates: float) -> Finalist:
    """A side of the proof with a launch for each rate, paired with a baseline of 100 samples/s."""
    found = Finalist(name, settings, rates=list(rates))
    found.pairs = [(100.0 + 0.1 * i, rate) for i, rate in enumerate(rates)]
    for i, rate in enumerate(rates, 1):
        times = StepTime(*(1000.0 / rate * part for part in (1, 2, 3, 4)))
        found.results.append(
            run_result(samples_per_second=rate, step_time_ms=times, peak_memory_bytes=i * 1000)
        )
    return found


def written(
    findings: TuningFindings, *trials: Any, objective: str = "throughput"
) -> dict[str, Any]:
    """The document as it is read again from its file, checked against its schema."""
    aim = f"--objective={objective}"
    options = parse(["--optimize", aim, "--nproc-per-node=2", "train.py", "--lr", "1"], {})
    report = tuning_document(
        findings,
        options=options,
        trials=trials,
        isolation="overlay",
        fingerprint={"torch": "2.13"},
        invocation=saved_settings.tuned_command(options),
        seconds=12.5,
    )
    text = json.loads(json_text(to_json(report)))
    jsonschema.validate(text, all_schemas()["tuning@2.json"])
    assert from_json(TuningReport, text) == report
    assert isinstance(text, dict)
    return text


def proven(chosen: Finalist | None = None) -> TuningFindings:
    chosen = chosen or finalist("chosen", {"loader_workers": 4}, 200.0, 200.2, 200.4)
    chosen.guard = SOUND
    chosen.against = finalist("baseline", {}, 100.0, 102.0)
    return TuningFindings(facts=facts(), chosen=chosen, verdict="faster")


def test_a_proven_gain_holds_its_proof_and_the_means_of_its_launches() -> None:
    report = written(proven(), trial(1, {}, 100.0))
    assert report["statistically_significant"] is True
    assert report["speedup"] == report["proof"]["speedup"] == pytest.approx(2.0, rel=0.01)
    assert report["p_value"] < 0.05
    assert len(report["proof"]["pairs"]) == 3
    assert report["baseline"]["samples_per_second"] == pytest.approx(100.1, rel=1e-3)
    assert report["chosen"]["knobs"] == {"loader_workers": 4}
    ratio = report["chosen"]["samples_per_second"] / report["baseline"]["samples_per_second"]
    assert ratio == pytest.approx(report["speedup"]), "the table shows what was proven, no other"
    assert report["chosen"]["peak_memory_bytes"] == 3000
    mean = report["chosen"]["step_time_ms"]["mean"]
    assert report["chosen"]["step_time_ms"]["p99"] == pytest.approx(4 * mean)


@pytest.mark.parametrize(
    ("objective", "verdict", "factor"),
    [
        ("throughput", "faster", "speedup"),
        ("memory", "smaller", "memory_reduction"),
        ("energy", "saves_energy", "energy_reduction"),
    ],
)
def test_the_factor_that_was_proven_is_that_of_the_objective(
    objective: str, verdict: str, factor: str
) -> None:
    report = written(proven(), objective=objective)
    assert report["verdict"] == verdict
    assert report[factor] == pytest.approx(2.0, rel=0.01)
    assert report[f"{factor}_confidence_interval"] is not None


def ladder(findings: TuningFindings, **words: Any) -> list[tuple[str, dict[str, Any], bool, Any]]:
    rows = written(findings, **words)["ladder"]
    return [(row["stage"], row["changes"], row["kept"], row["speedup"]) for row in rows]


def test_the_ladder_has_the_script_as_it_is_the_rungs_and_last_the_proof() -> None:
    both = {"tf32": True, "loader_workers": 4}
    findings = proven(finalist("chosen", both, 300.0, 300.2, 300.4))
    findings.rungs = [Rung("data", math.log(2.0), 0.1), Rung("precision", math.log(3.0), 0.1)]
    first, rung, last = ladder(findings)
    assert first == ("as it is", {}, True, 1.0)
    assert rung == ("data", {"loader_workers": 4}, True, pytest.approx(2.0))
    assert last[:3] == ("precision", {"tf32": True}, True)
    assert last[3] == written(findings)["speedup"]


@pytest.mark.parametrize("objective", ["throughput", "memory"])
def test_where_no_rung_was_measured_all_that_was_proven_is_one_row(objective: str) -> None:
    both = {"tf32": True, "loader_workers": 4}
    findings = proven(finalist("chosen", both, 300.0, 300.2, 300.4))
    _, row = ladder(findings, objective=objective)
    assert row[:3] == ("precision", {"loader_workers": 4, "tf32": True}, True)


def test_what_is_not_chosen_has_its_rows_with_the_reason() -> None:
    findings = proven()
    findings.left_out = {"tf32": True}
    findings.objections = {"tf32": "it loses in its rung"}
    findings.dropped = [LadderRow("compile", {"compile": "default"}, "numerics", False,
                                  reason="no gain")]  # fmt: skip
    rows = written(findings)["ladder"]
    assert [(row["stage"], row["reason"]) for row in rows if not row["kept"]] == [
        ("precision", "it loses in its rung"), ("compile", "no gain"),
    ]  # fmt: skip


def test_it_says_what_was_asked_and_what_to_type_next() -> None:
    report = written(proven())
    assert report["command"] == ["train.py", "--lr", "1"]
    assert report["invocation"] == [
        *("gpurun", "--tuned", "--nproc-per-node=2", "train.py", "--lr", "1")
    ]
    assert report["fingerprint"] == {"torch": "2.13"}
    assert (report["isolation"], report["tuning_seconds"]) == ("overlay", 12.5)


def test_without_a_proven_gain_the_script_as_it_is_is_chosen() -> None:
    findings = proven()
    findings.verdict = "no_gain"
    report = written(findings)
    assert report["chosen"] == report["baseline"]
    assert report["chosen"]["knobs"] == {}
    assert report["statistically_significant"] is False
    assert report["proof"]["pairs"]  # what was measured is kept all the same


def test_without_a_proof_the_first_trial_stands_for_the_baseline() -> None:
    findings = TuningFindings(probe=finished(80.0), verdict="interrupted")
    report = written(findings, trial(1, {}, 80.0))
    assert report["baseline"]["samples_per_second"] == 80.0
    for name in ("speedup", "speedup_confidence_interval", "p_value", "proof", "guard"):
        assert report[name] is None


def test_made_to_fit_is_what_the_trial_ran_under_and_nothing_else() -> None:
    """It fitted once and then not again: no other run's figures stand beside those settings."""
    base = {"checkpointing": "blocks"}
    slow = replace(finished(None), record=trial(2, base, None))
    report = written(
        TuningFindings(base=base, probe=slow, verdict="inconclusive"), trial(2, base, None)
    )
    assert report["verdict"] == "fits"
    assert report["baseline"]["knobs"] == base
    gone = TuningFindings(base=base, probe=finished(None), verdict="script_failed")
    assert written(gone, trial(1, {}, None))["baseline"] is None


def test_what_was_never_measured_is_null() -> None:
    report = written(TuningFindings(verdict="script_failed"), trial(1, {}, None))
    for name in ("baseline", "chosen", "speedup", "larger_batch", "other_load"):
        assert report[name] is None
    assert report["trials"][0]["samples_per_second"] is None


def test_figures_that_only_some_launches_have_are_means_of_those() -> None:
    findings = proven()
    findings.verdict = "no_gain"
    assert findings.baseline is not None
    findings.baseline.results = [
        run_result(samples_per_second=None, gpu_utilization_percent=None, peak_memory_bytes=None),
        run_result(samples_per_second=90.0, gpu_utilization_percent=40.0, step_time_ms=None),
    ]
    report = written(findings)
    assert report["baseline"]["samples_per_second"] == 90.0
    assert report["baseline"]["gpu_utilization_percent"] == 40.0


def test_the_larger_batch_holds_its_side_effects_and_the_guards_verdict() -> None:
    findings = proven()
    findings.larger = finalist("larger batch", {"batch_size": BATCH_64}, 300.0, 301.0, 302.0)
    findings.larger.guard = BROKEN
    report = written(findings)["larger_batch"]
    assert report["batch_size"] == 64
    assert report["speedup"] == pytest.approx(3.0, rel=0.01)
    assert any("learning rate × 2" in effect for effect in report["side_effects"])
    assert report["guard"]["reasons"] == ["the loss diverges"]


def test_a_larger_batch_without_a_proof_is_no_headline() -> None:
    """Seen: "with batch 256: ×3.54 (not proven)" beside ×2.26 in the table."""
    findings = proven()
    findings.larger = finalist("larger batch", {"batch_size": BATCH_64}, 354.0)
    assert written(findings)["larger_batch"] is None


def test_every_rejection_and_decision_is_kept() -> None:
    findings = proven()
    findings.rejections.append(Rejection({"tf32": True}, BROKEN))
    findings.decisions.append("tf32: trying True")
    findings.reason = "the script as it is failed"
    report = written(findings)
    assert report["reason"] == "the script as it is failed"
    assert report["rejections"][0]["knobs"] == {"tf32": True}
    assert report["decisions"] == ["tf32: trying True"]


def test_the_load_of_others_is_the_mean_over_the_trials_time() -> None:
    long = trial(1, {}, 100.0, seconds=30.0, others_cpu_percent=10.0)
    short = trial(2, {}, 100.0, seconds=10.0, others_cpu_percent=90.0)
    report = written(proven(), long, short, trial(3, {}, 100.0))
    assert report["other_load"]["cpu_percent"] == pytest.approx(30.0)
    assert report["other_load"]["cores"] >= 1


def test_lines_that_wait_for_the_gpu_in_every_step_are_told_and_no_others(tmp_path: Path) -> None:
    reads = (
        ValueRead("train.py:9", ".cpu()", "cuda", 7, 7),
        ValueRead("train.py:9", ".item()", "cpu", 7, 7),
        ValueRead("train.py:9", "printing", "cuda", 7, 21),
        ValueRead("train.py:11", "float()", "cuda", 2, 2),
        ValueRead("train.py:12", ".item()", "cpu", 7, 7),
        ValueRead("train.py:30", "a condition", "cuda", 7, 7),
    )
    write_events(tmp_path, [WaitsEvent(steps=7, reads=reads)])
    (log,) = read_run(tmp_path).processes
    report = written(TuningFindings(probe=replace(finished(80.0), log=log), verdict="no_gain"))
    assert report["waits"] == [
        {"where": "train.py:9", "calls": {".cpu()": 1.0, "printing": 3.0}},
        {"where": "train.py:30", "calls": {"a condition": 1.0}},
    ]
    assert written(proven())["waits"] == []


def test_a_script_whose_loss_is_not_finite_is_told_with_the_step() -> None:
    seen = LaunchAudit(seed=0, losses=(1.0, math.inf, math.inf), microbatches=(1, 1, 1))
    broken = replace(finished(80.0), evidence=seen)
    report = written(TuningFindings(probe=broken, verdict="no_gain"))
    assert report["loss_nonfinite_from"] == 2
    (told,) = remarks(from_json(TuningReport, report))
    assert told.startswith("the script's own loss is not finite from step 2 on")
    sound = replace(broken, evidence=replace(seen, losses=(1.0, math.inf, 0.9)))
    assert written(TuningFindings(probe=sound))["loss_nonfinite_from"] is None


def test_a_gain_of_the_loader_in_the_first_epoch_alone_is_called_so() -> None:
    workers, threads = {"loader_workers": 4}, {"cpu_threads": 1}
    for knobs, needed, told in (
        (workers, 150.0, True),
        (threads, 150.0, False),
        (workers, None, False),
    ):
        report = tuning_report(second_epoch_budget=needed)
        assert report.chosen is not None
        report = replace(report, chosen=replace(report.chosen, knobs=knobs))
        said = second_epoch_sentence(report)
        assert (said is not None) is told
        assert said is None or "`--budget 3m` measures the second" in said
