"""Findings on the screen: critical issues, warnings, notes, and what they could gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from gpurun.formatting.finding_sentence import gain_text
from gpurun.formatting.kernel_names import short_kernel_name
from gpurun.formatting.number_text import count, milliseconds, number, times
from gpurun.formatting.one_line import one_line
from gpurun.records.diagnosis import DiagnosisReport
from gpurun.records.finding import EvidenceFigure, Finding, Location
from gpurun.report.terminal_output import PREFIX, VERBATIM, Line, write_lines
from gpurun.rundir import shown_path

TOP = 5
"""Findings that are shown unless all are asked for."""
HEADINGS = {"critical": "Critical issues", "warning": "Warnings", "note": "Notes"}
STYLES = {"critical": "bold red", "warning": "yellow", "note": "cyan"}
_EVIDENCE_SHOWN = 5
KERNEL_FIGURES = ("kernel", "longest_kernel")
"""Evidence that names a kernel; documents have its whole signature."""
_ADVICE_SHOWN = 2


def print_diagnosis(report: DiagnosisReport, everything: bool = False) -> None:
    """Write the findings to stderr: the most severe five, or all."""
    write_lines([[(PREFIX, "bold cyan"), *line] for line in diagnosis_lines(report, everything)])


def diagnosis_lines(report: DiagnosisReport, everything: bool = False) -> list[Line]:
    """The lines, without the prefix that each gets on the screen."""
    shown = report.findings if everything else report.findings[:TOP]
    lines: list[Line] = [[(headline(report), "bold")]]
    number = 0
    for level, group in groupby(shown, key=lambda finding: finding.level):
        lines.append([(HEADINGS[level], STYLES[level])])
        for finding in group:
            number += 1
            lines += _finding_lines(number, finding, everything)
    lines += [[(text, "")] for text in _closing(report, len(shown), everything)]
    return lines


def headline(report: DiagnosisReport) -> str:
    """The run that was diagnosed, and its speed."""
    parts = []
    result = report.result
    if result is not None and result.samples_per_second is not None:
        parts.append(f"{number(result.samples_per_second)} samples/s")
    step = result.step_time_ms.mean if result is not None and result.step_time_ms else None
    if step is None and report.figures is not None:
        step = report.figures.step_ms
    if step is not None:
        parts.append(f"step {milliseconds(step)}")
    if report.figures is not None and report.figures.idle is not None:
        parts.append(f"device idle {report.figures.idle.total * 100:.0f} %")
    if report.steps_profiled:
        parts.append(f"{count(report.steps_profiled, 'step')} profiled")
    told = f": {', '.join(parts)}" if parts else ""
    return f"diagnosis of {report.subject}{told}"


def estimated_improvement(findings: Sequence[Finding]) -> str | None:
    """The largest gain in a sentence; None without any. Gains never add up."""
    replayed = [f.replayed_gain for f in findings if f.replayed_gain is not None]
    bounds = [f.gain_upper_bound for f in findings if f.gain_upper_bound is not None]
    if not replayed and not bounds:
        return None
    how = "replayed" if replayed else "upper bound"
    told = f"Estimated improvement: up to {times(max(replayed or bounds))}"
    return f"{told} ({how}; gains do not add up)"


def why_not_replayed(report: DiagnosisReport) -> str | None:
    """Why gains are bounds; None where none is."""
    if all(f.gain_upper_bound is None for f in report.findings):
        return None
    on_device = report.figures is not None and report.figures.idle is not None
    why = "no timeline of a device was recorded"
    if on_device and report.replay is not None:
        why = report.replay.mismatch or "no replay shows these causes"
    return f"gains are upper bounds where nothing was replayed: {why}"


def place(location: Location) -> str:
    """A location as an editor takes it, from the current folder where it lies below it."""
    path = location.file
    if Path(path).is_absolute():
        relative = shown_path(path)
        path = path if relative.startswith("..") else relative
    at = path if location.line is None else f"{path}:{location.line}"
    return at if location.function is None else f"{at} in {location.function}"


def evidence_text(figures: Sequence[EvidenceFigure]) -> str:
    """Figures by source: "step clock: data_wait_share 0.43, workers 0; CPU use: cores_used 1.1"."""
    by_source: dict[str, list[str]] = {}
    for figure in figures:
        value = figure.value if isinstance(figure.value, str) else number(figure.value)
        if figure.name in KERNEL_FIGURES:
            value = short_kernel_name(value)
        by_source.setdefault(figure.source, []).append(f"{figure.name} {one_line(value, 80)}")
    return "; ".join(f"{source}: {', '.join(told)}" for source, told in by_source.items())


def advice(finding: Finding) -> tuple[str, ...]:
    """The recommendations, and that `--optimize` tries the knob where there is one."""
    if finding.knob is None:
        return finding.recommendations
    return (*finding.recommendations, f"gpurun --optimize tries this by itself ({finding.knob})")


def _finding_lines(index: int, finding: Finding, everything: bool) -> Iterator[Line]:
    text = finding.description[:1].upper() + finding.description[1:]
    yield [
        (f"{index}. ", ""),
        (finding.type.value, STYLES[finding.level]),
        (f" ({finding.severity:.2f}): {one_line(text)}", ""),
    ]
    if finding.location is not None:
        yield [("   where: ", "dim"), (place(finding.location), VERBATIM)]
    figures = finding.evidence if everything else finding.evidence[:_EVIDENCE_SHOWN]
    if figures:
        yield [("   evidence: ", "dim"), (evidence_text(figures), "")]
    most = len(finding.recommendations) if everything else _ADVICE_SHOWN
    tips = (*finding.recommendations[:most], *advice(finding)[len(finding.recommendations) :])
    for tip in tips:
        yield [("   do: ", "dim"), (one_line(tip), "")]
    if gain := gain_text(finding):
        yield [("   gain: ", "dim"), (gain, "")]


def _closing(report: DiagnosisReport, shown: int, everything: bool) -> Iterator[str]:
    hidden = len(report.findings) - shown
    untrained = report.result is not None and report.result.clock is None
    if untrained:
        yield "no training was seen in this run: there are no steps to diagnose"
    elif not report.findings and report.sources:
        yield f"no cause was found; measured: {', '.join(report.sources)}"
    elif not report.findings:
        yield "no figure was measured that a diagnosis could use"
    if hidden and not everything:
        yield f"{count(hidden, 'more finding')}: --all shows them"
    yield from filter(None, (estimated_improvement(report.findings), why_not_replayed(report)))
    if report.overhead_percent is not None:
        yield f"profiled steps took {max(report.overhead_percent, 0):.1f} % longer than the others"
    for source in report.absent_sources if everything or not report.findings else ():
        yield f"not measured: {source.name}; to have it: {source.todo}"
    for note in (*report.failed_sources, *report.notes):
        yield f"note: {one_line(note)}"
