"""The ratio of two sides' step times from the turns of one live pair. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.stats import median, standard_deviation
from gpurun.trials.live_pair import Round

BLOCKS = 16
"""Neighbouring turns resemble each other, so the error is taken over blocks of them."""
LEAST_ROUNDS = 2 * BLOCKS


@dataclass(frozen=True)
class TurnRatio:
    """`log`: ln(step time of the second side / step time of the first); `error`: its standard
    error within this pair of launches. Launches differ beyond it.
    """

    log: float
    error: float
    rounds: int


def turn_ratio(rounds: Sequence[Round]) -> TurnRatio | None:
    """The median over rounds and its error from the medians of blocks; None for too few rounds."""
    if len(rounds) < LEAST_ROUNDS:
        return None
    logs = [math.log(r.second.step_seconds / r.first.step_seconds) for r in rounds]
    size = len(logs) // BLOCKS
    medians = [median(logs[i * size : (i + 1) * size]) for i in range(BLOCKS)]
    return TurnRatio(median(logs), standard_deviation(medians) / math.sqrt(BLOCKS), len(rounds))
