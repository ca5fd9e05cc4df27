"""The findings of a tuning so far, and the exception that ends it early."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpurun.records.facts import Facts
from gpurun.records.finding import Finding
from gpurun.records.tuning import Ceilings, GuardVerdict, LadderRow, Rejection
from gpurun.tuner.ladder.rungs import Rung
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.tuning_trial import Trial


class TuningEnded(Exception):
    """The tuning cannot go on. `verdict` as in `TuningReport`; `why` in one line."""

    def __init__(self, verdict: str, why: str) -> None:
        super().__init__(why)
        self.verdict = verdict
        self.why = why


@dataclass
class TuningFindings:
    """Everything that the report is made of; filled as the tuning goes."""

    probe: Trial | None = None
    base: dict[str, Any] = field(default_factory=dict)
    """Settings without which the script runs out of memory: what everything is compared with."""
    facts: Facts | None = None
    baseline: Finalist | None = None
    chosen: Finalist | None = None
    larger: Finalist | None = None
    larger_guard: GuardVerdict | None = None
    seen: tuple[Finding, ...] = ()
    """Findings of the script as it is."""
    left: tuple[Finding, ...] = ()
    """Findings under the settings that were chosen."""
    rungs: list[Rung] = field(default_factory=list)
    """Of the chosen settings."""
    dropped: list[LadderRow] = field(default_factory=list)
    """The rows of changes that the search tried and did not keep."""
    left_out: dict[str, Any] = field(default_factory=dict)
    """Settings that the search kept and that are not among the chosen ones."""
    objections: dict[str, str] = field(default_factory=dict)
    """By knob, what speaks against a setting."""
    guard: GuardVerdict | None = None
    rejections: list[Rejection] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    untried: tuple[str, ...] = ()
    """Knobs that the end of the time kept from being tried."""
    proof_seconds: float | None = None
    """From the beginning until a gain was first significant."""
    ceilings: Ceilings | None = None
    second_epoch_budget: float | None = None
    """As in `TuningReport`."""
    verdict: str = "interrupted"
    reason: str = ""
    """Why nothing is proven, where it is not the end of the budget in the proof."""
