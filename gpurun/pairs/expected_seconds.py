"""How long a live pair takes, expected before it is launched."""

from __future__ import annotations

from dataclasses import dataclass

from gpurun.pairs.live_pair import STRETCH_SECONDS, STRETCH_SECONDS_WITHOUT_GPU
from gpurun.pairs.side import LEAST_STEPS
from gpurun.pairs.turn_ratio import least_rounds
from gpurun.pairs.turn_taking import (
    EPOCH_SECONDS,
    LARGE_ERROR,
    LONGER,
    MOST_TURN_SECONDS,
    TURN_SECONDS,
    seconds_to_see_epochs,
)

CORES_FOR_TWO = 4
"""On fewer cores two processes that start beside each other take as long as one after the other."""
END_SECONDS = 1.0
"""Both sides write their records and leave."""


@dataclass(frozen=True)
class SideSeconds:
    """Seconds of a side's start, until it could take turns, of a step, and of an epoch.

    `imports`: the part of its start in which it uses one core. `epoch` is 0 where it is not known.
    """

    start: float
    step: float = 0.0
    epoch: float = 0.0
    imports: float = 0.0


def live_pair_seconds(
    one: SideSeconds,
    other: SideSeconds,
    *,
    together: bool,
    on_gpu: bool,
    error: float | None = None,
) -> float:
    """Seconds of a live pair: both starts, an uninterrupted stretch of each side, and the turns.

    `together`: both warm up at the same time. Both import at the same time in any case. `on_gpu`:
    the stretches are those of a GPU. `error`: that of an earlier ratio of both sides, None where
    there is none; where it is large, turns go on as long as they may.
    """
    starts = max(one.start, other.start)
    if not together:
        starts = one.start + other.start - min(one.imports, other.imports)
    stretch = STRETCH_SECONDS if on_gpu else STRETCH_SECONDS_WITHOUT_GPU
    longest = LEAST_STEPS * max(one.step, other.step)  # both get equal time, not equal steps
    turns = least_rounds(longest) * ((1 + LONGER) * longest + one.step + other.step)
    epochs = seconds_to_see_epochs(max(one.epoch, other.epoch))
    if epochs > EPOCH_SECONDS:  # too long to be waited for
        epochs = 0.0
    least = MOST_TURN_SECONDS if error is not None and error > LARGE_ERROR else TURN_SECONDS
    return starts + 2 * stretch + END_SECONDS + max(least, turns, epochs)
