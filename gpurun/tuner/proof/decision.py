"""Decides a tuning: its verdict, the chosen settings, and why others are not among them.

Pure functions over what was proven and judged; nothing is launched here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpurun.records.effects import ALLOW_ALL
from gpurun.records.tuning import GuardVerdict
from gpurun.tuner.proof.finalist import Finalist

BATCH = "batch_size"
APPLY_TRAINING = f"changes training: apply with {ALLOW_ALL}"


@dataclass(frozen=True)
class JudgedFinalist:
    """A finalist with what the loss guard says of it."""

    finalist: Finalist
    guard: GuardVerdict

    @property
    def accepted(self) -> bool:
        """It ran, and it trains the same."""
        return self.finalist.failure is None and self.guard.accepted

    @property
    def proven(self) -> bool:
        """Faster, by the sequential test, and accepted."""
        look = self.finalist.look()
        return self.accepted and look.significant and (look.speedup or 0.0) > 1.0

    @property
    def objection(self) -> str:
        """Reason why it is not chosen, in a clause."""
        if self.finalist.failure is not None:
            return self.finalist.failure
        if not self.guard.accepted:
            return "rejected by the loss guard: " + "; ".join(self.guard.reasons)
        if not self.finalist.settled:
            return "not proven: the budget ended first"
        return "the proof does not confirm it"


@dataclass(frozen=True)
class Decision:
    """`verdict` as in `TuningReport`; `winner` is None where the script stays as it is."""

    verdict: str
    winner: JudgedFinalist | None
    shown: JudgedFinalist | None
    """The finalist whose proof the report shows: the winner, else the one that came closest."""


def decide(
    chosen: JudgedFinalist | None, larger: JudgedFinalist | None, training_allowed: bool
) -> Decision:
    """Choose between the finalist of the same training and, if allowed, the larger batch."""
    candidates = [j for j in (chosen, larger if training_allowed else None) if j is not None]
    proven = [j for j in candidates if j.proven]
    if proven:
        winner = max(proven, key=lambda j: j.finalist.look().speedup or 0.0)
        return Decision("faster", winner, winner)
    open_ones = [j for j in candidates if j.accepted and not j.finalist.settled]
    if open_ones:
        return Decision("inconclusive", None, open_ones[0])
    return Decision("no_gain", None, candidates[0] if candidates else None)


def reasons_left_out(
    settings: Mapping[str, Any], decision: Decision, objections: Mapping[str, str]
) -> dict[str, str]:
    """By knob, why settings that the search kept are not chosen: of those alone that are not.

    `objections`: by knob, what speaks against it alone.
    """
    chosen = decision.winner.finalist.settings if decision.winner is not None else {}
    default = decision.shown.objection if decision.shown is not None else "not proven"
    return {
        knob: objections.get(knob, default)
        for knob, value in settings.items()
        if knob not in chosen or chosen[knob] != value
    }
