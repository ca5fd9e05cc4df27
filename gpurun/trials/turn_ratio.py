"""The ratio of two sides' step times from the turns of one live pair. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpurun.stats import median, standard_deviation
from gpurun.trials.live_pair import Round

MOST_BLOCKS = 16
"""Neighbouring turns resemble each other, so the error is taken over blocks of them."""
LEAST_ROUNDS = 6
"""More take minutes where a step takes a second; where steps are quick there are many more."""


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
    blocks = min(MOST_BLOCKS, len(logs) // 2)
    bounds = [round(i * len(logs) / blocks) for i in range(blocks + 1)]
    medians = [median(logs[a:b]) for a, b in pairwise(bounds)]
    return TurnRatio(median(logs), standard_deviation(medians) / math.sqrt(blocks), len(rounds))
