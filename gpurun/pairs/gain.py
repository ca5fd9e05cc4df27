"""Is a setting faster? The sequential test of the tuner, by the estimate of its pairs so far.

At each look a two-sided interval is drawn at that look's share of the error. The shares add up to
5 %, so all intervals of the plan hold together with 95 %, whichever look it stops at (repeated
confidence intervals: Jennison and Turnbull 1989). `scripts/simulate_pairs.py` has the error rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.pairs.estimate import LOOKS, Reading, estimate

LEVELS = dict(zip(LOOKS, (0.011, 0.005, 0.010, 0.005, 0.005, 0.005, 0.005, 0.004), strict=False))
"""Two-sided error of the look after so many pairs. The second gets much: a large gain is to be
proven by two pairs. One pair shows no scatter, so nothing is claimed of it."""
MOST_PAIRS = max(LEVELS)
ALPHA = sum(LEVELS.values())
PRECISE = 1.2
"""SPEC: a proof goes on until the ends of its interval are no further from the gain than this."""
LEAST_GAIN = 1.02
"""A smaller gain is not worth a change."""
FUTILE, FUTILE_LEVEL = 1.1, 0.05
"""The test gives up once the gain is below `LEAST_GAIN`, and with 95 % below this."""


@dataclass(frozen=True)
class Look:
    """The test after its latest look; pairs after that are not used yet.

    Before the first look `speedup`, `interval` and `p_value` are None. `speedup`: candidate /
    baseline. `p_value`: adjusted for the looks, below 5 % exactly where `interval` excludes 1.
    `settled`: further pairs are not needed.
    """

    speedup: float | None
    interval: tuple[float, float] | None
    p_value: float | None
    significant: bool
    settled: bool
    pairs_used: int

    @property
    def proven(self) -> bool:
        """True if it is a gain beyond chance, and no loss."""
        return self.significant and (self.speedup or 0.0) > 1.0


NOTHING = Look(None, None, None, False, False, 0)


def look(readings: Sequence[Reading]) -> Look:
    """Judge pairs in the order in which they were run: d = ln(candidate / baseline).

    To be called after every pair; a budget that ends between two looks leaves the earlier one.
    """
    pairs = max((n for n in LEVELS if n <= len(readings)), default=0)
    if not pairs:
        return NOTHING
    found, level = estimate(readings[:pairs]), LEVELS[pairs]
    half = found.half_width(level / 2)
    interval = math.exp(found.log - half), math.exp(found.log + half)
    significant = not interval[0] <= 1.0 <= interval[1]
    precise = significant and half <= math.log(PRECISE)
    most = found.log + found.half_width(FUTILE_LEVEL)
    futile = found.log < math.log(LEAST_GAIN) and most < math.log(FUTILE)
    tail = min(found.tail(0.0), 1 - found.tail(0.0))
    return Look(
        speedup=math.exp(found.log),
        interval=interval,
        p_value=min(1.0, 2 * tail * ALPHA / level),
        significant=significant,
        settled=precise or futile or pairs == MOST_PAIRS,
        pairs_used=pairs,
    )
