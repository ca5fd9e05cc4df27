"""Findings and ceilings in sentences."""

from __future__ import annotations

from gpurun.formatting.number_text import number, times
from gpurun.records.finding import Finding
from gpurun.records.tuning import Ceilings


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


def ceiling_rates(ceilings: Ceilings) -> list[tuple[str, float]]:
    """Samples a second of loader, model and script; none where neither side was measured."""
    sides = (
        ("loader alone", ceilings.loader_samples_per_second),
        ("model alone", ceilings.model_samples_per_second),
    )
    known = [(name, rate) for name, rate in sides if rate is not None]
    if known and ceilings.script_samples_per_second is not None:
        known.append(("the script", ceilings.script_samples_per_second))
    return known


def ceilings_sentence(ceilings: Ceilings) -> str:
    """The ceilings in one line; "" where none was measured."""
    told = "; ".join(f"{name} {number(rate)} samples/s" for name, rate in ceiling_rates(ceilings))
    return f"as it is: {told}" if told else ""
