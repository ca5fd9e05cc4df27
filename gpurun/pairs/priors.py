"""How far pairs of equal launches are assumed to differ, by class, and what each was fitted to.

All are standard deviations of ln of the ratio beyond the error that the turns of a pair show, and
each is worth one pair: what the pairs of a comparison show soon counts for more.
"""

from __future__ import annotations

from gpurun.pairs.estimate import Prior
from gpurun.records.bench.metrics import Metric

IN_TURN = Prior(0.03)
"""Launches one after the other: 0.9 % on a quiet machine, 10 % and more on a shared one."""
LIVE = Prior(0.02)
"""Live pairs of trainings that make their own batches (`scripts/recordings/live_pairs.json`)."""
FED = Prior(0.08)
"""Live pairs of which a side is fed by loader workers (the same, and an H200)."""
MEMORY = Prior(0.003)
"""Peak memory of live pairs (the same recordings)."""


def speed_prior(*, live: bool, fed: bool) -> Prior:
    """Of pairs by their speed; `fed`: loader workers feed one of the sides."""
    if not live:
        return IN_TURN
    return FED if fed else LIVE


def prior_of(metric: Metric, *, live: bool, fed: bool) -> Prior:
    """Of a gated metric."""
    if metric is Metric.PEAK_MEMORY:
        return MEMORY
    return speed_prior(live=live and metric is not Metric.ENERGY, fed=fed)
