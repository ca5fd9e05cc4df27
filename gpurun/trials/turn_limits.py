"""How many turns a live pair takes: until its ratio is known, within limits of time."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpurun.stats.descriptive import median
from gpurun.trials.live_pair import Round, Side, SideEnded, take_turns
from gpurun.trials.turn_ratio import LEAST_EPOCHS, LEAST_ROUNDS, TurnRatio, turn_ratio

TURN_SECONDS = 5.0
EPOCH_SECONDS = 16.0
MOST_ROUNDS = 4 * LEAST_ROUNDS
"""If no ratio is known by then, it never will be."""
SMALL_ERROR = 0.007
"""Turns of a pair end once the error of their ratio is this small: launches differ by more."""
LARGE_ERROR = 0.03
"""Turns go on, for up to `MOST_TURN_SECONDS`, while the error of their ratio is larger. Launches
differ by about as much, and longer turns cost less than the start of a further pair."""
MOST_TURN_SECONDS = 15.0


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

    def enough(
        self, deadline: float = math.inf, hurry: float = math.inf
    ) -> Callable[[Sequence[Round]], bool]:
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
            if ratio is None:  # too few rounds, or an epoch ended in nearly all of them
                return len(rounds) >= MOST_ROUNDS and taken > self.epoch_seconds
            if _misses_epochs(rounds, ratio) and _epochs_seconds(rounds) < self.epoch_seconds:
                return taken > self.epoch_seconds
            if begun[-1] > hurry:
                return True
            most = self.most_seconds if ratio.error > LARGE_ERROR else self.seconds
            return taken > most or ratio.error < self.error

        return enough


def spare_seconds(rounds: Sequence[Round], seconds: float) -> float:
    """How much less than these seconds, which all rounds took, would have given a ratio.

    With the starts of epochs in it, if they are in that of all rounds.
    """
    whole = turn_ratio(rounds)
    if whole is None:
        return 0.0

    def tells(count: int) -> bool:
        ratio = turn_ratio(rounds[:count])
        return ratio is not None and (ratio.epoch_starts > 0 or not whole.epoch_starts)

    fewest = next(filter(tells, range(1, len(rounds) + 1)), len(rounds))
    return seconds * (1 - fewest / len(rounds))


def measured_rounds(
    sides: tuple[Side, Side],
    draws: random.Random,
    enough: Callable[[Sequence[Round]], bool],
    whole_epochs: tuple[bool, bool],
) -> list[Round]:
    """The rounds of `take_turns`; fewer if a training comes to its proper end, and they give a
    ratio. Errors are those of `take_turns`."""
    try:
        return take_turns(sides, draws, enough, whole_epochs)
    except SideEnded as ended:
        if ended.exit_code != 0 or turn_ratio(ended.rounds) is None:
            raise
        return ended.rounds


def _misses_epochs(rounds: Sequence[Round], ratio: TurnRatio) -> bool:
    """True if there are epochs, too long for a turn, of which too few were seen to begin."""
    last = rounds[-1].turns
    whole = all(turn.whole_epochs for turn in last)
    return any(turn.epoch_steps for turn in last) and not whole and not ratio.epoch_starts


def _epochs_seconds(rounds: Sequence[Round]) -> float:
    """The longest that it takes until enough epochs have begun on both sides, which get equal time.

    A side whose epochs were not seen yet has epochs of as many steps as the other one.
    """
    last = rounds[-1].turns
    steps = max(turn.epoch_steps for turn in last)
    usual = [
        median([r.first.step_seconds for r in rounds]),
        median([r.second.step_seconds for r in rounds]),
    ]
    epochs = [
        (turn.epoch_steps or steps) * seconds for turn, seconds in zip(last, usual, strict=True)
    ]
    return seconds_to_see_epochs(max(epochs))


def seconds_to_see_epochs(epoch: float) -> float:
    """Seconds until enough epochs have begun on both sides; `epoch`: of the longer ones."""
    return 2 * LEAST_EPOCHS * epoch
