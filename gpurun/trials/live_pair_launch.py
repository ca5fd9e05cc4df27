"""A live pair of trials: both sides of a round launched beside each other, measured in turns."""

from __future__ import annotations

import math
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpurun.isolation.api import Sandbox
from gpurun.measure.sampler import Sampler
from gpurun.records.messages.turns import Turn
from gpurun.records.spec import GO
from gpurun.stats.descriptive import median
from gpurun.trials.live_pair import (
    PairFailed,
    Round,
    Side,
    await_both,
    has_short_epochs,
    take_turns,
)
from gpurun.trials.shared_gpu import shared_gpu_notes
from gpurun.trials.turn_ratio import LEAST_EPOCHS, LEAST_ROUNDS, TurnRatio, turn_ratio

STRETCH_SECONDS = 2.0
"""Each side first has the machine for so long without a break: GPU activity, power and memory
cannot be told from turns of some milliseconds."""
STRETCH_SECONDS_WITHOUT_GPU = 1.0
"""There are fewer counters, and pairs are many: launches on a CPU differ by 2 to 4 %."""
TURN_SECONDS = 5.0
EPOCH_SECONDS = 16.0
MOST_ROUNDS = 4 * LEAST_ROUNDS
"""If no ratio is known by then, it never will be."""
SMALL_ERROR = 0.007
"""Turns of a pair end sooner once their ratio is known so well: launches differ by more."""
LARGE_ERROR = 0.03
"""Turns go on, for up to `MOST_TURN_SECONDS`, where their ratio is known no better, which is about
what launches differ by: that costs less than the start of a further pair."""
MOST_TURN_SECONDS = 15.0
EXIT_SECONDS = 30.0
"""A side whose turns are over writes its record and leaves within this time."""


@dataclass(frozen=True)
class PairSide:
    """One side to launch: its sandbox, its folder, and how to wait for it.

    `start(hold)`: with `hold` it waits at its first step until `go`.
    """

    name: str
    start: Callable[[bool], Sandbox]
    run_dir: Path
    patience_seconds: float

    @property
    def control(self) -> Path:
        """The folder of the messages between launcher and script."""
        return self.run_dir / "control"

    def go(self) -> None:
        """Let it train, if it waits at its first step."""
        (self.control / GO).touch()


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

    def enough(self, deadline: float = math.inf) -> Callable[[Sequence[Round]], bool]:
        """True if these rounds are enough. `deadline` (monotonic clock): they are from then on."""
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
            most = self.most_seconds if ratio.error > LARGE_ERROR else self.seconds
            return taken > most or ratio.error < self.error

        return enough


@dataclass(frozen=True)
class PairEnd:
    """The end of a live pair. `ratio`: step time of the second over the first side's, by turns.

    `exit_codes` and `seconds`: of both sides. `failure`: why there is no ratio, "" where there is.
    `notes`: what disturbed the GPU meanwhile, a clause each.
    """

    ratio: TurnRatio | None
    exit_codes: tuple[int | None, int | None]
    seconds: float
    failure: str
    notes: tuple[str, ...] = ()


def run_live_pair(
    sides: tuple[PairSide, PairSide],
    started: Callable[[], tuple[int, ...]],
    ready: Callable[[], None],
    draws: random.Random,
    deadline: float,
) -> PairEnd:
    """Launch both sides, let them warm up, and take turns.

    Both start together. Without a GPU they then warm up one after the other: where both compute on
    all cores, the threads of one wait for cores that threads of the other hold. Steps of an LSTM on
    two cores took 2.6 s instead of 20 ms.

    `started` is called once both sides are launched; it gives the processes that it started beside
    them. `ready` is called when both are warmed up, before anything is measured. Turns end at
    `deadline` (monotonic clock) at the latest, with the rounds that there are by then. Ends both
    sides on KeyboardInterrupt and on any failure.
    """
    began = time.monotonic()
    rounds: list[Round] = []
    stretches: tuple[Turn, Turn] | None = None
    failure = ""
    with ExitStack() as stack:
        sandboxes: list[Sandbox] = []
        live: list[Side] = []
        samplers = [stack.enter_context(closing(Sampler(side.run_dir))) for side in sides]
        for sampler in samplers:
            sampler.look_around()
        gpus = samplers[0].sees_gpus
        for hold, side in zip((False, not gpus), sides, strict=True):
            sandboxes.append(stack.enter_context(side.start(hold)))
        others = started()
        for number, side in enumerate(sides):
            samplers[number].beside = (sandboxes[1 - number].pid, *others)
            made = live_side(side, sandboxes[number], samplers[number])
            live.append(stack.enter_context(closing(made)))
        pair = (live[0], live[1])
        try:
            await_both(pair, sides[1].go)
            ready()
            nanoseconds = int(1e9 * (STRETCH_SECONDS if gpus else STRETCH_SECONDS_WITHOUT_GPU))
            stretches = (pair[0].take(nanoseconds, pair[1]), pair[1].take(nanoseconds, pair[0]))
            enough = TurnLimits().enough(deadline)
            rounds = take_turns(pair, draws, enough, has_short_epochs(stretches))
            for side_of_pair in pair:
                side_of_pair.end()
            codes = [_exit_code(sandbox) for sandbox in sandboxes]
        except PairFailed as failed:
            failure = str(failed)
            codes = [sandbox.poll() for sandbox in sandboxes]
    ratio = turn_ratio(rounds)
    notes = shared_gpu_notes([side.run_dir for side in sides], stretches)
    return PairEnd(ratio, (codes[0], codes[1]), time.monotonic() - began, failure, notes)


def live_side(side: PairSide, sandbox: Sandbox, sampler: Sampler) -> Side:
    """The started side; it is sampled while its answers are awaited."""
    tick = partial(sampler.tick, sandbox.pid)
    return Side(side.name, sandbox, side.control, side.patience_seconds, tick)


def _misses_epochs(rounds: Sequence[Round], ratio: TurnRatio) -> bool:
    """True if there are epochs, too long for a turn, of which too few were seen to begin."""
    last = (rounds[-1].first, rounds[-1].second)
    return (
        any(turn.epoch_steps for turn in last)
        and not rounds[-1].whole_epochs
        and not ratio.epoch_starts
    )


def _epochs_seconds(rounds: Sequence[Round]) -> float:
    """The longest that it takes until enough epochs have begun on both sides, which get equal time.

    A side whose epochs were not seen yet has epochs of as many steps as the other one.
    """
    last = (rounds[-1].first, rounds[-1].second)
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


def _exit_code(sandbox: Sandbox) -> int | None:
    """The exit code of a side; None for one that had to be killed."""
    try:
        return sandbox.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        sandbox.kill()
        return None
