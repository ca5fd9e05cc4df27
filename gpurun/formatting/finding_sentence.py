"""One finding in a sentence."""

from __future__ import annotations

from gpurun.formatting.number_text import times
from gpurun.records.finding import Finding


def finding_sentence(finding: Finding) -> str:
    """The finding with its bound: "the training waits for data ... (at most 2.70×)"."""
    bound = finding.gain_upper_bound
    said = finding.description
    return said if bound is None else f"{said} (at most {times(bound)})"
