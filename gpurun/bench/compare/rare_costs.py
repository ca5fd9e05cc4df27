"""Costs that come once in many steps: turns of a few steps miss them, a long stretch does not.

A checkpoint at every hundredth step is in few turns of a live pair, and the median over turns
leaves it out. In the uninterrupted stretches it lifts the mean step above the median one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpurun.bench.benchmark_launcher import Launch
from gpurun.stats.descriptive import mean, standard_deviation
from gpurun.stats.student_t import t_quantile

LEVEL = 0.99
"""One-sided, of the proof that there is such a cost."""
SHARE = 0.5
"""The share of the threshold below which a cost may be left out."""
MISSED = "the current tree has a cost that comes once in many steps: turns of a few steps miss it"


def has_rare_cost(pairs: Sequence[tuple[Launch, Launch]], threshold: float) -> bool:
    """True if (baseline, current) launches prove a rare cost of the current side that matters.

    `threshold`: the fraction of throughput that may be lost.
    """
    excess = [_excess(now) - _excess(before) for before, now in pairs]
    if len(excess) < 2 or not all(map(math.isfinite, excess)):
        return False
    average = mean(excess)
    error = standard_deviation(excess) / math.sqrt(len(excess))
    proven = average - t_quantile(len(excess) - 1, LEVEL) * error > 0
    return proven and average > SHARE * threshold


def _excess(launch: Launch) -> float:
    """ln of the mean step over the median one; NaN where no step was measured."""
    times = launch.result.step_time_ms
    return math.nan if times is None or times.p50 <= 0 else math.log(times.mean / times.p50)
