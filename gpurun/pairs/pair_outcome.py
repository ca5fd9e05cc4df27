"""The outcome of a live pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from gpurun.pairs.turn_ratio import TurnRatio
from gpurun.records.failure import Failure

Side = TypeVar("Side")
"""An outcome, or what a tuning or a benchmark makes of it."""


@dataclass(frozen=True)
class PairOutcome(Generic[Side]):
    """Both sides of a live pair, and the ratio of their step times, second over first.

    `failure`: why there is no ratio; None where there is one. The sides are None where nothing was
    launched. `seconds`: what the pair took.
    """

    first: Side | None
    second: Side | None
    ratio: TurnRatio | None
    failure: Failure | None
    seconds: float = 0.0
