"""What slows a training down, with the user's line, the evidence and the bound."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from itertools import groupby

from gpurun.formatting.finding_sentence import gain_text
from gpurun.records.diagnosis import DiagnosisReport
from gpurun.records.finding import Finding, Location
from gpurun.report.findings_text import (
    HEADINGS,
    TOP,
    advice,
    estimated_improvement,
    evidence_text,
    headline,
    place,
    why_not_replayed,
)
from gpurun.report.page.page_blocks import Card, Page, PagePart, Paragraph, Section
from gpurun.report.page.profile_sections import profile_sections
from gpurun.report.page.run_contents import RunContents

LINE_LENGTH = 160


def findings_sections(contents: RunContents) -> list[Section]:
    """Findings of the script as it is, of the chosen settings, and of the run."""
    groups: list[tuple[str, Sequence[Finding]]] = []
    if contents.tuning is not None:
        groups.append(("Findings before tuning", contents.tuning.findings))
        groups.append(("Findings that are left", contents.tuning.findings_left))
    if contents.diagnosis is not None:
        groups.append(("Findings", contents.diagnosis.findings))
    return [_section(title, findings) for title, findings in groups if findings]


def diagnosis_page(report: DiagnosisReport, everything: bool = False) -> Page:
    """A page of a diagnosis alone: the most severe five findings, or all."""
    shown = report.findings if everything else report.findings[:TOP]
    sections = [
        Section(HEADINGS[level], tuple(map(_card, group)))
        for level, group in groupby(shown, key=lambda finding: finding.level)
    ]
    told = (estimated_improvement(report.findings), why_not_replayed(report))
    closing = [Paragraph(f"{text}.") for text in told if text]
    if hidden := len(report.findings) - len(shown):
        closing.insert(0, Paragraph(f"{hidden} more in the JSON document."))
    if not shown:
        measured = ", ".join(report.sources) or "nothing"
        closing.append(Paragraph(f"Nothing was found. Measured: {measured}."))
    profile = profile_sections(report, None if everything else TOP)
    part = PagePart("", (*sections, Section("", tuple(closing)), *profile))
    return Page(f"gpurun {headline(report)}", (part,))


def _section(title: str, findings: Sequence[Finding]) -> Section:
    gain = estimated_improvement(findings)
    return Section(title, (*map(_card, findings), *([Paragraph(f"{gain}.")] if gain else [])))


def _card(finding: Finding) -> Card:
    lines, code = [], ""
    if finding.location is not None:
        lines.append(f"where: {place(finding.location)}")
        code = _line_of(finding.location)
    if finding.evidence:
        lines.append(f"evidence: {evidence_text(finding.evidence)}")
    lines += [f"do: {tip}" for tip in advice(finding)]
    if gain := gain_text(finding):
        lines.append(f"gain: {gain}")
    said = finding.description[:1].upper() + finding.description[1:]
    title = f"{said} ({finding.type.value}, severity {finding.severity:.2f})"
    return Card(title, finding.level, tuple(lines), code)


def _line_of(location: Location) -> str:
    """The line as the file has it now; "" if the file is not there."""
    if location.line is None:
        return ""
    return linecache.getline(location.file, location.line).strip()[:LINE_LENGTH]
