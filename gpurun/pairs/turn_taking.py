"""The turns of a live pair, one side frozen while the other trains, until their ratio is known.

Disturbances that both sides share hit neighbouring turns alike and cancel in their ratio. Duet
benchmarking: Bulej et al., ICPE 2020 (arXiv 2001.05811).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpurun.pairs.side import LEAST_STEPS, Side, SideEnded
from gpurun.pairs.turn_ratio import (
    LEAST_EPOCHS,
    LEAST_ROUNDS,
    MOST_BLOCKS,
    Round,
    pace,
    turn_ratio,
)
from gpurun.stats.descriptive import median

LEAST_NS = 15_000_000
"""A turn's counted time at least: shorter ones measure the hand-over."""
FED_NS = 300_000_000
"""Where loader workers feed a side. A sample that a worker waits for (a disk, a sleep) goes on
while it is frozen: that may shorten each turn by one sample's time."""
MOST_NS = 500_000_000
"""Longer turns see other disturbances than their neighbours."""
FEW_STEPS = 2
"""Counted steps of a turn at least where one takes `SLOW_NS`: a GPU step of 195 ms varied by 0.1 %,
and rounds of five of them took most of a pair."""
SLOW_NS = 100_000_000
RECENT = 8
"""The usual hand-over is the median of so many."""
LONGER = 1.5
"""Turns are drawn between their length and so many times it."""
HANDOVER_SHARE = 0.1
"""Hand-overs may take this share of a turn; longer ones lengthen the turns."""

TURN_SECONDS = 5.0
MOST_TURN_SECONDS = 15.0
EPOCH_SECONDS = 16.0
MOST_ROUNDS = 4 * LEAST_ROUNDS
"""If no ratio is known by then, it never will be."""
SMALL_ERROR = 0.007
"""Turns end once the error of their ratio is this small: launches differ by more."""
LARGE_ERROR = 0.03
"""Turns go on, for up to `MOST_TURN_SECONDS`, while the error of their ratio is larger. Launches
differ by about as much, and longer turns cost less than the start of a further pair."""
PART_OF_RATIO = 0.03
"""An error is small if it is at most this part of the ratio's logarithm: nobody asks for the
percent of a gain of 5. On an H200 a pair took 15 s of turns for it, after 10 s to start."""
TOO_SMALL = 4
"""The error of the fewest blocks is so many times too small in one case of fifty."""

Enough = Callable[[Sequence[Round]], bool]


@dataclass(frozen=True)
class TurnLimits:
    """The length of all turns, unless the fewest rounds take longer.

    `seconds`: at most, `most_seconds` where the error is large until then. `epoch_seconds`: at
    most, where enough epochs begin on both sides meanwhile. `error`: turns end sooner once the
    standard error of the ratio's logarithm is below it.
    """

    seconds: float = TURN_SECONDS
    most_seconds: float = MOST_TURN_SECONDS
    epoch_seconds: float = EPOCH_SECONDS
    error: float = SMALL_ERROR

    def enough(self, deadline: float = math.inf, hurry: float = math.inf) -> Enough:
        """True if these rounds are enough. By the monotonic clock, from `hurry` on they are once
        they give a ratio, with the epochs in it that begin soon; from `deadline` on in any case.
        """
        begun: list[float] = []

        def enough(rounds: Sequence[Round]) -> bool:
            begun.append(time.monotonic())
            taken = begun[-1] - begun[0]
            if begun[-1] > deadline:
                return True
            ratio = turn_ratio(rounds)
            if ratio is None:
                return len(rounds) >= MOST_ROUNDS and taken > self.epoch_seconds
            if not ratio.epoch_ends and 0 < _epochs_seconds(rounds) < self.epoch_seconds:
                return taken > self.epoch_seconds
            if begun[-1] > hurry:
                return True
            part = PART_OF_RATIO * abs(ratio.log)
            most = self.most_seconds if ratio.error > max(LARGE_ERROR, part) else self.seconds
            # of few blocks an error is small by chance, and turns that end on it would believe it
            known = ratio.rounds >= 2 * MOST_BLOCKS and ratio.error < max(self.error, part)
            return taken > most or known or ratio.error < part / TOO_SMALL

        return enough


def take_turns(sides: tuple[Side, Side], draws: random.Random, enough: Enough) -> list[Round]:
    """Let two sides, frozen at their steps, take turns in random order until `enough` says so.

    Both get equal time, not equal steps. Turns are as long as the usual hand-over asks for. A
    training that comes to its proper end ends them, if the rounds until then give a ratio. Errors
    are those of `Side.take`.
    """
    rounds: list[Round] = []
    handovers: list[int] = []
    nanoseconds = LEAST_NS
    while not enough(rounds):
        began = time.perf_counter_ns()
        turns = {}
        try:
            for number in draws.sample((0, 1), 2):
                least_ns, least_steps = _length(rounds, number, nanoseconds, draws)
                turns[number] = sides[number].take(least_ns, sides[1 - number], least_steps)
        except SideEnded as ended:
            if ended.exit_code != 0 or turn_ratio(rounds) is None:
                raise
            break
        rounds.append(Round(turns[0], turns[1]))
        handovers.append(_handover(time.perf_counter_ns() - began, rounds[-1]))
        nanoseconds = turn_nanoseconds(rounds, handovers)
    return rounds


def turn_nanoseconds(rounds: Sequence[Round], handovers: Sequence[int]) -> int:
    """Counted time of the next turn of each side, by the rounds and the hand-overs so far (ns).

    It has room for the least steps of both, and hand-overs take their share at most. By the last
    round alone, turns after a regular cost would be longer than others, and would hold fewer
    uncounted steps.
    """
    recent = sorted(handovers[-RECENT:])
    paces = (pace(rounds, 0), pace(rounds, 1))
    steps = max(least_steps(one) * one for one in paces)
    least = FED_NS if any(turn.fed for turn in rounds[-1].turns) else LEAST_NS
    wanted = max(least, steps, recent[len(recent) // 2] / HANDOVER_SHARE)
    return int(min(wanted, max(MOST_NS, steps)))


def least_steps(step: float) -> int:
    """Counted steps of a turn at least; `step`: what one takes (ns)."""
    return FEW_STEPS if step >= SLOW_NS else LEAST_STEPS


def _length(
    rounds: Sequence[Round], number: int, nanoseconds: int, draws: random.Random
) -> tuple[int, int]:
    """Counted time and steps of a side's next turn at least; equal time for both sides.

    Once its pace is known steps alone end a turn: where time does, a long step ends more turns than
    a short one. Their number is drawn: of equal turns the first step, which is not counted, might
    always be the one that pays a regular cost, or never. A pace of few steps says little: there
    are at most twice as many as in the last turn.
    """
    if not rounds:
        return nanoseconds, FEW_STEPS
    wanted = max(least_steps(pace(rounds, number)), nanoseconds / pace(rounds, number))
    steps = min(wanted, 2 * rounds[-1].turns[number].steps)
    return 0, round(steps * draws.uniform(1, LONGER))


def _handover(took: int, both: Round) -> int:
    """The time of one hand-over; the first step of a turn is neither counted nor a part of it."""
    counted = sum(turn.nanoseconds for turn in both.turns)
    uncounted = sum(turn.nanoseconds // turn.steps for turn in both.turns)
    return max(0, took - counted - uncounted) // 2


def _epochs_seconds(rounds: Sequence[Round]) -> float:
    """The longest that it takes until enough epochs have begun on both sides, which get equal time;
    0 where no whole epoch was seen yet.

    A side whose epochs were not seen yet has epochs of as many steps as the other one.
    """
    last = rounds[-1].turns
    steps = max(turn.epoch_steps for turn in last)
    usual = [median([r.turns[number].step_seconds for r in rounds]) for number in (0, 1)]
    sides = zip(last, usual, strict=True)
    return 2 * LEAST_EPOCHS * max((turn.epoch_steps or steps) * s for turn, s in sides)
