"""What is shown of a diagnosis: by severity, with place, evidence, cure and an honest bound."""

from __future__ import annotations

from dataclasses import replace

from gpurun.diagnoses.diagnosis_report import diagnosis_report
from gpurun.diagnoses.evidence import Evidence
from gpurun.records.diagnosis import DiagnosisReport
from gpurun.records.finding import EvidenceFigure, Finding, FindingType, Location
from gpurun.report.findings_text import diagnosis_lines
from gpurun.report.page.findings_section import diagnosis_page
from gpurun.report.page.markdown_page import markdown_page
from gpurun.report.terminal_output import plain
from tests.unit.diagnosis_cases import healthy_cpu, result


def finding(severity: float, gain: float | None = 2.0, knob: str | None = None) -> Finding:
    return Finding(
        type=FindingType.DATA_LOADING,
        severity=severity,
        description=f"the training waits ({severity})",
        evidence=(
            EvidenceFigure("data_wait_share", 0.43, "step clock"),
            EvidenceFigure("workers", 0, "step clock"),
            EvidenceFigure("cores_used", 1.5, "CPU use"),
        ),
        location=Location("train.py", 31, "main"),
        recommendations=("load in workers", "store decoded samples", "a third way"),
        knob=knob,
        gain_upper_bound=gain,
    )


def report(*findings: Finding) -> DiagnosisReport:
    return replace(diagnosis_report(healthy_cpu(), "train.py"), findings=findings)


def text(shown: DiagnosisReport, everything: bool = False) -> str:
    return "\n".join(plain(line) for line in diagnosis_lines(shown, everything))


def test_findings_stand_under_the_heading_of_their_severity() -> None:
    shown = text(report(finding(0.9), finding(0.7), finding(0.4), finding(0.3)))
    critical, warnings = shown.index("Critical issues"), shown.index("Warnings")
    notes = shown.index("Notes")
    assert critical < shown.index("waits (0.9)") < warnings
    assert warnings < shown.index("waits (0.7)") < shown.index("waits (0.4)") < notes
    assert notes < shown.index("waits (0.3)")


def test_a_finding_shows_place_evidence_cure_and_bound() -> None:
    shown = text(report(finding(0.9, 2.1, "loader_workers")))
    assert "where: train.py:31 in main" in shown
    assert "step clock: data_wait_share 0.430, workers 0; CPU use: cores_used 1.50" in shown
    assert "do: load in workers" in shown
    assert "a third way" not in shown
    assert "gpurun --optimize tries this by itself (loader_workers)" in shown
    assert "gain: up to 2.10×" in shown


def test_bounds_are_not_added_up() -> None:
    shown = text(report(finding(0.9, 2.1), finding(0.8, 1.5), finding(0.5, None)))
    assert "Estimated improvement: up to 2.10× (upper bound; gains do not add up)" in shown
    assert "Estimated" not in text(report(finding(0.5, None)))


def test_five_findings_are_shown_unless_all_are_asked_for() -> None:
    many = report(*(finding(0.9 - i / 20) for i in range(7)))
    assert "5. " in text(many)
    assert "6. " not in text(many)
    assert "2 more findings: --all shows them" in text(many)
    assert "7. " in text(many, everything=True)
    assert "a third way" in text(many, everything=True)


def test_without_findings_it_says_so_and_names_what_was_not_measured() -> None:
    shown = text(report())
    assert "no cause was found; measured: step clock, CPU use" in shown
    assert "not measured: host profile; to have it: gpurun profile SCRIPT" in shown


def test_markdown_holds_the_same() -> None:
    shown = markdown_page(diagnosis_page(report(finding(0.9, 2.1), finding(0.5, None))))
    assert shown.startswith("# gpurun diagnosis of train.py: 6,400 samples/s, step 10.0 ms")
    assert "## Critical issues" in shown
    assert "* where: train.py:31 in main" in shown
    assert "Estimated improvement: up to 2.10×" in shown
    assert shown.count("Estimated") == 1


def test_a_recording_that_tells_too_little_is_not_called_fine() -> None:
    empty = diagnosis_report(Evidence(), "trace.json")
    assert "no figure was measured that a diagnosis could use" in text(empty)
    assert "Nothing was found. Measured: nothing." in markdown_page(diagnosis_page(empty))


def test_a_run_without_training_is_told_as_such() -> None:
    untrained = replace(report(), result=result(clock=None, split=None, step_time_ms=None))
    assert "no training was seen in this run" in text(untrained)
    assert "nothing was found" not in text(untrained)
