"""Costs that come once in many steps: the median over turns of a few steps leaves them out.

A checkpoint at every hundredth step is in few turns of a live pair. It lifts a mean step above the
median one: in the uninterrupted stretch, if that is long enough, and over all turns of a pair at
once. Stretches cover the same steps in every pair, turns do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpurun.bench.benchmark_launcher import Launch
from gpurun.stats.descriptive import mean, standard_deviation
from gpurun.stats.student_t import t_quantile

LEVEL = 0.99
"""One-sided, of the proof by stretches that there is such a cost."""
SHARE = 0.5
"""The share of the threshold below which a cost may be left out of stretches."""
LEVEL_OF_TURNS = 0.9
"""By turns a suspicion is enough: what follows is the slower method, not a verdict. A cost may lie
in the turns of two pairs of three."""
MISSED = "a tree has a cost that comes once in many steps: turns of a few steps miss it"


def has_rare_cost(
    pairs: Sequence[tuple[Launch, Launch]], turns: Sequence[float], threshold: float
) -> bool:
    """True if pairs of launches show a rare cost of the second ones that matters.

    `turns`: by how much more the mean over all turns of each pair exceeds the median in the second
    ones, as a logarithm.
    `threshold`: the fraction of throughput that may be lost.
    """
    stretches = [_excess(now) - _excess(before) for before, now in pairs]
    return _exceeds(stretches, SHARE * threshold, LEVEL) or _exceeds(
        turns, threshold, LEVEL_OF_TURNS
    )


def _exceeds(excess: Sequence[float], least: float, level: float) -> bool:
    """True if the mean is above `least`, and above 0 at this level."""
    if len(excess) < 2 or not all(map(math.isfinite, excess)):
        return False
    average = mean(excess)
    error = standard_deviation(excess) / math.sqrt(len(excess))
    return average > least and average > t_quantile(len(excess) - 1, level) * error


def _excess(launch: Launch) -> float:
    """ln of the mean step over the median one; NaN where no step was measured."""
    times = launch.result.step_time_ms
    return math.nan if times is None or times.p50 <= 0 else math.log(times.mean / times.p50)
