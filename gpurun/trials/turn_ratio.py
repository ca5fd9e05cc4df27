"""The ratio of two sides' step times from the turns of one live pair. Pure.

A side's turns of whole epochs, or else those inside epochs, give the ratio by their median. Turns
inside epochs miss the cost of an epoch's end (workers that start anew, evaluation, checkpoints). It
is measured apart: the time of a turn at an end above that of as many usual steps. The median of
these is shared out among the steps of an epoch: with a mean, one disturbed end would pass for a
cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from gpurun.records.messages.turns import Turn
from gpurun.stats.descriptive import (
    MEDIAN_ERROR,
    median,
    median_deviation,
    median_error,
    standard_deviation,
)
from gpurun.trials.live_pair import Round
from gpurun.trials.turn_length import MOST_NS

T = TypeVar("T")

FEW_ENDS = 4
"""Of fewer ends of epochs two may agree by chance, and their median deviation says nothing."""
MOST_BLOCKS = 16
"""Neighbouring turns resemble each other, so the error is taken over blocks of them."""
FEWEST_FOR_BLOCKS = 8
"""Of fewer turns two or three blocks would remain, whose medians agree by chance: the error of four
turns is then less than half of the deviation in 31 % of normal cases, and in 8 % without blocks."""
LOADER_BLOCKS = 8
"""Workers hand on several batches at once, and single turns begin anywhere between: mean step times
are taken over blocks of turns."""
LEAST_ROUNDS = 6
"""Where steps are quick there are many more."""
LEAST_LONG_ROUNDS = 4
"""Enough where turns take half a second. Six rounds take a minute where a step takes a second. The
median of four is off by more than twice its error no more often than the median of six."""
LEAST_MADE = 0.25
"""If less than this part of the batches of a side were made in its turns, they say little of its
workers."""
LEAST_EPOCHS = 2
"""With fewer epoch starts of each side, nothing is said of them."""
SIGNS = (-1, 1)
"""Of the first and the second side's step time in the logarithm of their ratio."""


@dataclass(frozen=True)
class TurnRatio:
    """`log`: ln(step time of the second side / step time of the first); `error`: its standard
    error within this pair of launches. Launches differ beyond it.

    `epoch_starts`: of the side that had fewer, so far as they are counted apart. `excess`: what the
    ratio of mean step times, over all turns at once, adds to `log`. Costs that come once in many
    steps are in few turns, and the medians leave them out.
    """

    log: float
    error: float
    rounds: int
    epoch_starts: int = 0
    excess: float = 0.0

    @property
    def turned(self) -> TurnRatio:
        """The same with the sides exchanged."""
        return replace(self, log=-self.log, excess=-self.excess)


@dataclass(frozen=True)
class _EpochCost:
    """By which share the ends of epochs lengthen a step, and the error of that."""

    share: float
    error: float
    starts: int


def turn_ratio(rounds: Sequence[Round]) -> TurnRatio | None:
    """The ratio and its error from the medians of blocks.

    None for too few rounds, and where too many batches of a side had been made before them.
    """
    whole = tuple(_counts_whole_epochs(rounds, number) for number in (0, 1))
    steady = [r for r in rounds if _is_steady(r, whole)]
    if _too_few(steady):
        return None
    if any(turn.batches for r in rounds for turn in r.turns):
        logs = [_log_of(group) for group in _parts(steady, min(LOADER_BLOCKS, len(steady)))]
        log, error = median(logs), median_error(logs)
    else:
        logs = [_log_of([one]) for one in steady]
        blocks = len(logs) // 2 if len(logs) >= FEWEST_FOR_BLOCKS else len(logs)
        medians = [median(part) for part in _parts(logs, min(MOST_BLOCKS, blocks))]
        log, error = median(logs), median_error(medians)
    excess = _log_of(steady) - log
    costs: dict[int, _EpochCost] = {}
    for number in (0, 1):
        if not whole[number]:
            turns = [r.turns[number] for r in rounds]
            if (made := _made_meanwhile(turns)) < LEAST_MADE:
                return None
            log -= SIGNS[number] * math.log(made)
            costs[number] = _epoch_cost(turns)
    starts = min((cost.starts for cost in costs.values()), default=0)
    if starts < LEAST_EPOCHS:
        return TurnRatio(log, error, len(steady), excess=excess)
    log += sum(SIGNS[number] * math.log1p(cost.share) for number, cost in costs.items())
    error = math.hypot(error, *(cost.error / (1 + cost.share) for cost in costs.values()))
    return TurnRatio(log, error, len(steady), starts, excess)


def _counts_whole_epochs(rounds: Sequence[Round], number: int) -> bool:
    """True if this side has turns enough that count whole epochs."""
    return not _too_few([r for r in rounds if r.turns[number].whole_epochs])


def _is_steady(one: Round, whole: tuple[bool, ...]) -> bool:
    """True if each turn counts whole epochs where its side does, and lies inside one elsewhere."""
    sides = zip(one.turns, whole, strict=True)
    return all(not turn.at_epoch_end and turn.whole_epochs == counts for turn, counts in sides)


def least_rounds(turn_seconds: float) -> int:
    """The fewest rounds that give a ratio; `turn_seconds`: of a usual turn."""
    return LEAST_LONG_ROUNDS if turn_seconds >= MOST_NS / 1e9 else LEAST_ROUNDS


def _too_few(rounds: Sequence[Round]) -> bool:
    """True if so many rounds give no ratio."""
    seconds = [min(r.first.nanoseconds, r.second.nanoseconds) / 1e9 for r in rounds]
    return not rounds or len(rounds) < least_rounds(median(seconds))


def _log_of(rounds: Sequence[Round]) -> float:
    """The logarithm of the ratio of mean step times."""
    first, second = (
        sum(turn.nanoseconds for turn in turns) / sum(turn.steps for turn in turns)
        for turns in ([r.first for r in rounds], [r.second for r in rounds])
    )
    return math.log(second / first)


def _parts(values: Sequence[T], count: int) -> list[Sequence[T]]:
    """Neighbours in so many parts of about equal length."""
    bounds = [round(i * len(values) / count) for i in range(count + 1)]
    return [values[a:b] for a, b in pairwise(bounds)]


def _made_meanwhile(turns: Sequence[Turn]) -> float:
    """The share of the batches that were made in these turns; the others came out of stock."""
    inside = [turn for turn in turns if not (turn.whole_epochs or turn.at_epoch_end)]
    batches = sum(turn.batches for turn in inside)
    return min(1.0, 1.0 + sum(turn.stocked for turn in inside) / batches) if batches else 1.0


def _epoch_cost(turns: Sequence[Turn]) -> _EpochCost:
    usual = median([t.step_seconds for t in turns if not t.at_epoch_end])
    longer: list[float] = []
    """By how many steps of usual length each end of an epoch takes longer."""
    before = 0.0
    for turn in (t for t in turns if t.at_epoch_end):
        before += turn.step_seconds * turn.steps / usual - turn.steps
        if turn.epoch_starts:  # a turn before this one may hold a part of the epoch's end
            longer.append(before / turn.epoch_starts)
            before = 0.0
    epoch_steps = max((turn.epoch_steps for turn in turns), default=0)
    if len(longer) < LEAST_EPOCHS or not epoch_steps:
        return _EpochCost(0.0, 0.0, len(longer))
    spread = median_deviation(longer)
    if len(longer) < FEW_ENDS:
        spread = max(spread, standard_deviation(longer))
    error = MEDIAN_ERROR * spread / math.sqrt(len(longer))
    return _EpochCost(max(0.0, median(longer)) / epoch_steps, error / epoch_steps, len(longer))
