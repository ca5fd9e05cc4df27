"""The ratio of two sides' step times from the turns of one live pair. Pure.

A side is frozen whole between its turns, its workers too. So over many turns it trains as if it
were never frozen: as many batches are made as are used, epochs end in their own proportion, and so
do costs that come once in many steps. The ratio is that of the mean step times over all turns; its
error is that of blocks of them, for neighbouring turns resemble each other.

Epochs that are too long for that, of which fewer than a quarter of a side's turns hold an end, are
counted apart: the time of a turn with an end above that of as many usual steps, shared out among
the steps of an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gpurun.records.messages.turns import Turn
from gpurun.stats.descriptive import median, standard_deviation

MOST_BLOCKS = 16
LEAST_ROUNDS = 6
"""Where steps are quick there are many more."""
LEAST_LONG_ROUNDS = 4
LONG_SECONDS = 0.3
"""Four are enough where a turn takes so long: six rounds take a minute where a step takes a
second."""
LEAST_EPOCHS = 2
"""With fewer turns of each side that hold the end of an epoch, nothing is said of epochs."""
MANY_ENDS = 0.25
"""Where so many turns of a side hold the end of an epoch, its ends are in their own proportion in
any block. With fewer on both sides, half of the rounds hold none."""


@dataclass(frozen=True)
class Round:
    """One turn of each side, in the order of the pair."""

    first: Turn
    second: Turn

    @property
    def turns(self) -> tuple[Turn, Turn]:
        """Both, in the order of the pair."""
        return (self.first, self.second)


@dataclass(frozen=True)
class TurnRatio:
    """`log`: ln(step time of the second side / step time of the first); `error`: its standard
    error within this pair of launches. Launches differ beyond it.

    `epoch_ends`: turns that hold one, of the side that has fewer; 0 where ends of epochs are not in
    the ratio.
    """

    log: float
    error: float
    rounds: int
    epoch_ends: int = 0

    @property
    def turned(self) -> TurnRatio:
        """The same with the sides exchanged."""
        return replace(self, log=-self.log)


def turn_ratio(rounds: Sequence[Round]) -> TurnRatio | None:
    """The ratio and its error; None for too few rounds."""
    sides = [[r.turns[number] for r in rounds] for number in (0, 1)]
    few = [n for n in (0, 1) if _ends(sides[n]) < max(LEAST_EPOCHS, MANY_ENDS * len(rounds))]
    steady = [r for r in rounds if not any(r.turns[number].epoch_starts for number in few)]
    if not steady or len(steady) < _least_rounds(steady):
        return None
    log, logs = _log_of(steady), [_log_of(block) for block in _blocks(steady)]
    error = standard_deviation(logs) / math.sqrt(len(logs))
    ends = min(map(_ends, sides))
    if ends < LEAST_EPOCHS:
        return TurnRatio(log, error, len(steady))
    for number in few:
        share, of_share = _epoch_cost(sides[number])
        log += math.log1p(share) if number else -math.log1p(share)
        error = math.hypot(error, of_share / (1 + share))
    return TurnRatio(log, error, len(steady), ends)


def _ends(turns: Sequence[Turn]) -> int:
    """How many turns hold the end of an epoch."""
    return sum(turn.epoch_starts > 0 for turn in turns)


def _least_rounds(rounds: Sequence[Round]) -> int:
    """The fewest that give a ratio."""
    usual = median([min(turn.nanoseconds for turn in r.turns) / 1e9 for r in rounds])
    return LEAST_LONG_ROUNDS if usual >= LONG_SECONDS else LEAST_ROUNDS


def pace(rounds: Sequence[Round], number: int) -> float:
    """The mean step time of the first (0) or second (1) side over these rounds (ns)."""
    turns = [both.turns[number] for both in rounds]
    return sum(turn.nanoseconds for turn in turns) / sum(turn.steps for turn in turns)


def _log_of(rounds: Sequence[Round]) -> float:
    """The logarithm of the ratio of mean step times."""
    return math.log(pace(rounds, 1) / pace(rounds, 0))


def _blocks(rounds: Sequence[Round]) -> list[Sequence[Round]]:
    """Neighbours, in parts of about equal length."""
    count = min(MOST_BLOCKS, max(LEAST_LONG_ROUNDS, len(rounds) // 2))
    bounds = [round(i * len(rounds) / count) for i in range(count + 1)]
    return [rounds[a:b] for a, b in pairwise(bounds)]


def _epoch_cost(turns: Sequence[Turn]) -> tuple[float, float]:
    """By which share the ends of epochs lengthen a step, and the error of that. A last batch that
    is small may shorten it.

    By the median of the ends: one disturbed end would pass for a cost.
    """
    usual = median([t.step_seconds for t in turns if not t.epoch_starts])
    ends = [t for t in turns if t.epoch_starts]
    longer = [t.steps * (t.step_seconds / usual - 1) / t.epoch_starts for t in ends]
    steps = max(turn.epoch_steps for turn in turns)
    return median(longer) / steps, standard_deviation(longer) / math.sqrt(len(longer)) / steps
