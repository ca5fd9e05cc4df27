"""The figures on which verdicts turn, in one place; `[thresholds]` of gpurun.toml sets them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Fractions unless the name says another unit.

    `loss_deviation`: how far a candidate's loss curve may lie from the baseline's before the loss
    guard rejects it, where the script's own repeats differ by less.
    """

    loss_deviation: float = 0.02
