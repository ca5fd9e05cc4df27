"""One finding in a sentence."""

from __future__ import annotations

from gpurun.formatting.number_text import times
from gpurun.records.finding import Finding


def finding_sentence(finding: Finding) -> str:
    """The finding with its gain: "the training waits for data ... (at most 2.70×)"."""
    gain = gain_text(finding, bound="at most")
    return f"{finding.description} ({gain})" if gain else finding.description


def gain_text(finding: Finding, *, bound: str = "up to") -> str:
    """The gain by a replay, else its bound: "1.60× as replayed", "up to 2.70×"; "" without one."""
    if finding.replayed_gain is not None:
        return f"{times(finding.replayed_gain)} as replayed"
    most = finding.gain_upper_bound
    return "" if most is None else f"{bound} {times(most)}"
