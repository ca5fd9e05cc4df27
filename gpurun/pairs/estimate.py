"""The estimate that pairs of launches give: a random-effects mean that knows a disturbed pair.

The unit is a pair of launches. Each gives d, the logarithm of a ratio, and the standard error that
d has within the pair (0 where it is not known). Launches of the same code differ beyond that: their
assumed standard deviation is the prior's. A pair has the weight 1 / (prior² + error²), and none has
more than three times the least, so that a pair whose turns agree by chance does not decide alone.
The scatter that is seen scales all variances at once (Birge's ratio): by (worth + Q) / (worth + n -
1), where Q is the sum of squares of the pairs in units of their own variances and the prior is
worth `worth` further pairs. Student's t with worth + n - 1 degrees of freedom bounds the mean.

Neighbouring pairs may be correlated, and a few pairs cannot tell. So from the second pair on the
error is what it would be if neighbours were correlated by 0.3. Every pair counts, none is clipped;
an interval is that of the pairs so far, whatever earlier ones said. `scripts/simulate_pairs.py`
tries the plans in use (`gain.py`, `gate.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.records.bench.metrics import Metric
from gpurun.stats.descriptive import SD_FLOOR
from gpurun.stats.student_t import t_quantile, t_upper_tail

MOST_WEIGHT = 3.0
"""SPEC: no weight above three times the least."""
CORRELATION = 0.3
WIDENING = math.sqrt((1 + CORRELATION) / (1 - CORRELATION))
"""The effect of AR(1) noise with this correlation of neighbours on the error of a mean."""


@dataclass(frozen=True)
class Reading:
    """One pair: the logarithm of its ratio, and the standard error of that within the pair."""

    log: float
    error: float = 0.0


@dataclass(frozen=True)
class Prior:
    """The assumed standard deviation of ln of the ratio between equal launches, beyond the error
    within a pair; that knowledge is `worth` so many pairs."""

    sd: float
    worth: int = 1


IN_TURN = Prior(0.025)
"""Launches one after the other: 0.9 % on a quiet machine, 10 % and more on a shared one."""
LIVE = Prior(0.012)
"""Live pairs (`scripts/recordings/live_pairs.json`): 0.6 % over 49 pairs of eleven workloads, 0.9 %
at most; 0.1 % where a GPU sets the pace, 2 % where its loader does, 5 % of a GPU training that the
host holds up: four times this, for which the plans are simulated too."""
MEMORY = Prior(0.003)
"""Peak memory of live pairs on a CPU: 0.3 %."""


@dataclass(frozen=True)
class Estimate:
    """The mean logarithm, its standard error with `freedom` degrees, and the standard deviation of
    one average pair that it stands on."""

    log: float
    error: float
    freedom: int
    pair_sd: float

    def half_width(self, level: float) -> float:
        """Of the interval that is exceeded with this probability on one side."""
        return t_quantile(self.freedom, 1 - level) * self.error

    def tail(self, border: float) -> float:
        """The one-sided p-value of a true logarithm no larger than `border`."""
        return t_upper_tail(self.freedom, (self.log - border) / self.error)


def estimate(readings: Sequence[Reading], prior: Prior) -> Estimate:
    """The estimate of at least one pair."""
    variances = [prior.sd**2 + one.error**2 for one in readings]
    least = 1 / max(variances)
    weights = [min(1 / variance, MOST_WEIGHT * least) for variance in variances]
    whole = math.fsum(weights)
    log = math.fsum(w * one.log for w, one in zip(weights, readings, strict=True)) / whole
    squares = math.fsum((r.log - log) ** 2 / v for r, v in zip(readings, variances, strict=True))
    freedom = prior.worth + len(readings) - 1
    scale = math.sqrt((prior.worth + squares) / freedom)
    pair_sd = max(scale * math.sqrt(math.fsum(variances) / len(variances)), SD_FLOOR)
    share = math.fsum(w * w * v for w, v in zip(weights, variances, strict=True))
    error = max(scale * math.sqrt(share) / whole, SD_FLOOR / math.sqrt(len(readings)))
    return Estimate(log, error * (WIDENING if len(readings) > 1 else 1.0), freedom, pair_sd)


def speed_prior(*, live: bool) -> Prior:
    """Of pairs by their speed."""
    return LIVE if live else IN_TURN


def prior_of(metric: Metric, *, live: bool) -> Prior:
    """Of a gated metric; no turns measure energy."""
    if metric is Metric.PEAK_MEMORY:
        return MEMORY
    return speed_prior(live=live and metric is not Metric.ENERGY)
