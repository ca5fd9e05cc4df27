"""Findings as Markdown."""

from __future__ import annotations

from itertools import groupby

from gpurun.formatting.number_text import times
from gpurun.records.diagnosis import DiagnosisReport
from gpurun.records.finding import Finding
from gpurun.report.finding_lines import (
    HEADINGS,
    TOP,
    advice,
    evidence_text,
    headline,
    largest_gain,
    place,
)
from gpurun.report.tuning_markdown import escaped


def diagnosis_markdown(report: DiagnosisReport, everything: bool = False) -> str:
    """A whole Markdown document: the most severe five findings, or all."""
    shown = report.findings if everything else report.findings[:TOP]
    parts = [f"# gpurun {escaped(headline(report))}"]
    for level, group in groupby(shown, key=lambda finding: finding.level):
        parts.append(f"## {HEADINGS[level]}")
        parts += map(_section, group)
    if not shown:
        measured = ", ".join(report.sources) or "nothing"
        parts.append(f"Nothing was found. Measured: {escaped(measured)}.")
    hidden = len(report.findings) - len(shown)
    if hidden:
        parts.append(f"{hidden} more in the JSON document.")
    gain = largest_gain(report.findings)
    if gain is not None:
        parts.append(
            f"**Estimated improvement: up to {times(gain)}** (upper bound; bounds do not add up)"
        )
    return "\n\n".join(parts) + "\n"


def _section(finding: Finding) -> str:
    text = finding.description[:1].upper() + finding.description[1:]
    lines = [f"### {finding.type.value} ({finding.severity:.2f})", "", f"{escaped(text)}.", ""]
    if finding.location is not None:
        lines.append(f"* where: `{place(finding.location)}`")
    if finding.evidence:
        lines.append(f"* evidence: {escaped(evidence_text(finding.evidence))}")
    lines += [f"* {escaped(tip)}" for tip in advice(finding)]
    if finding.gain_upper_bound is not None:
        lines.append(f"* gain: up to {times(finding.gain_upper_bound)}")
    return "\n".join(lines)
