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
from itertools import pairwise
from pathlib import Path

from gpurun.isolation.sandbox import Sandbox
from gpurun.measure.sampler import RunSampler
from gpurun.pairs.side import PairFailed, Side, await_both
from gpurun.pairs.turn_ratio import Round, TurnRatio, turn_ratio
from gpurun.pairs.turn_taking import TurnLimits, take_turns
from gpurun.records.messages.turns import Turn
from gpurun.records.spec import GO

STRETCH_SECONDS = 1.0
"""Each side first has the machine for so long without a break: GPU activity, power and memory
cannot be told from turns of some milliseconds."""
STRETCH_SECONDS_WITHOUT_GPU = 0.5
"""There are fewer counters, and pairs are many: launches on a CPU differ by 2 to 4 %."""
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
class PairEnd:
    """The end of a live pair. `ratio`: step time of the second over the first side's, by turns.

    `exit_codes` and `seconds`: of both sides. `failed`: why they took no turns, None if they did.
    `peaks`: as `peaks_at_same_step`.
    """

    ratio: TurnRatio | None
    exit_codes: tuple[int | None, int | None]
    seconds: float
    failed: PairFailed | None = None
    peaks: tuple[int | None, int | None] = (None, None)


def run_live_pair(
    sides: tuple[PairSide, PairSide],
    started: Callable[[], tuple[int, ...]],
    ready: Callable[[], None],
    draws: random.Random,
    deadline: float,
    hurry: float = math.inf,
) -> PairEnd:
    """Launch both sides, let them warm up, and take turns; ends both on any failure.

    Without a GPU they warm up one after the other: where both compute on all cores, the threads of
    one wait for cores that threads of the other hold. Steps of an LSTM on two cores took 2.6 s
    instead of 20 ms.

    `started` is called once both sides are launched; it gives the processes that it started beside
    them. `ready` is called when both are warmed up, before anything is measured. `hurry` and
    `deadline`: as in `TurnLimits.enough`; the pair fails if a side is not warmed up by then.
    """
    began = time.monotonic()
    rounds: list[Round] = []
    stretches: tuple[Turn, Turn] | None = None
    failed: PairFailed | None = None
    with ExitStack() as stack:
        sandboxes: list[Sandbox] = []
        live: list[Side] = []
        samplers = [stack.enter_context(closing(RunSampler(side.run_dir))) for side in sides]
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
            await_both(pair, sides[1].go, deadline)
            ready()
            nanoseconds = int(1e9 * (STRETCH_SECONDS if gpus else STRETCH_SECONDS_WITHOUT_GPU))
            stretches = (pair[0].take(nanoseconds, pair[1]), pair[1].take(nanoseconds, pair[0]))
            rounds = take_turns(pair, draws, TurnLimits().enough(deadline, hurry))
            for side_of_pair in pair:
                side_of_pair.end()
            codes = [_exit_code(sandbox) for sandbox in sandboxes]
        except PairFailed as error:
            failed = error
            codes = [sandbox.poll() for sandbox in sandboxes]
    ratio = turn_ratio(rounds)
    seconds = time.monotonic() - began
    both = [] if stretches is None else [stretches, *(r.turns for r in rounds)]
    peaks = peaks_at_same_step(([first for first, _ in both], [second for _, second in both]))
    return PairEnd(ratio, (codes[0], codes[1]), seconds, failed, peaks)


def peaks_at_same_step(
    sides: tuple[Sequence[Turn], Sequence[Turn]],
) -> tuple[int | None, int | None]:
    """The peak (bytes) of each side up to the last step which both have reached.

    Sides get equal time, not equal steps: if memory grows with steps (a cache of samples, a list of
    losses), the faster one needs more only because it took more. `sides`: the turns of each, in
    order; between two turns memory grows evenly. None where a side has no turns, or none that knew
    its memory.
    """
    if not all(sides):
        return None, None
    reached = min(turns[-1].all_steps for turns in sides)
    first, second = (round(_peak_at(turns, reached)) or None for turns in sides)
    return first, second


def _peak_at(turns: Sequence[Turn], reached: int) -> float:
    for earlier, later in pairwise(turns):
        if earlier.all_steps <= reached < later.all_steps:
            part = (reached - earlier.all_steps) / (later.all_steps - earlier.all_steps)
            return earlier.peak_bytes + part * (later.peak_bytes - earlier.peak_bytes)
    return turns[0].peak_bytes if reached < turns[0].all_steps else turns[-1].peak_bytes


def live_side(side: PairSide, sandbox: Sandbox, sampler: RunSampler) -> Side:
    """The started side; it is sampled while its answers are awaited."""
    tick = partial(sampler.tick, sandbox.pid)
    return Side(side.name, sandbox, side.control, side.patience_seconds, tick)


def _exit_code(sandbox: Sandbox) -> int | None:
    """The exit code of a side; None for one that had to be killed."""
    try:
        return sandbox.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        sandbox.kill()
        return None
