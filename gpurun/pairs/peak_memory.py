"""Peak memory of both sides of a live pair at the same number of steps.

Sides get equal time, not equal steps. If memory grows with steps (a data set that caches its
samples, a list of losses), the faster side needs more only because it took more steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gpurun.records.messages.turns import Turn


def peaks_at_same_step(
    sides: tuple[Sequence[Turn], Sequence[Turn]],
) -> tuple[int | None, int | None]:
    """The peak (bytes) of each side up to the last step which both have reached.

    `sides`: the turns of each, in order. Between two turns memory grows evenly. None where a side
    has no turns, or none that knew its memory.
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
