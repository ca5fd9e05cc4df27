"""How far pairs of equal launches are assumed to differ, by class, and what each was fitted to.

All are standard deviations of ln of the ratio beyond the error that the turns of a pair show, and
each is worth one pair: what the pairs of a comparison show soon counts for more.
"""

from __future__ import annotations

from gpurun.pairs.estimate import Prior
from gpurun.records.bench.metrics import Metric

IN_TURN = Prior(0.025)
"""Launches one after the other: 0.9 % on a quiet machine, 10 % and more on a shared one."""
LIVE = Prior(0.012)
"""Live pairs (`scripts/recordings/live_pairs.json`): 0.6 % over 49 pairs of eleven workloads, 0.9 %
at most; 0.1 % where a GPU sets the pace, 2 % where its loader does, 5 % of a GPU training that the
host holds up: four times this, for which the plans are simulated too."""
MEMORY = Prior(0.003)
"""Peak memory of live pairs on a CPU: 0.3 %."""


def speed_prior(*, live: bool) -> Prior:
    """Of pairs by their speed."""
    return LIVE if live else IN_TURN


def prior_of(metric: Metric, *, live: bool) -> Prior:
    """Of a gated metric; no turns measure energy."""
    if metric is Metric.PEAK_MEMORY:
        return MEMORY
    return speed_prior(live=live and metric is not Metric.ENERGY)
