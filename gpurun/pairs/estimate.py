"""The estimate that pairs of launches give: a weighted mean that knows a disturbed pair.

The unit is a pair of launches. Each gives d, the logarithm of a ratio, and the standard error that
d has within the pair (0 where it is not known). Launches of the same code differ beyond that, by a
standard deviation that is fixed for the kind of pair and is not estimated from these few. So a pair
has the variance sd² + error², and pairs of different kinds have one mean together.

* Weights are 1 / variance, and none is above three times the least: a pair whose turns agree by
  chance does not decide alone.
* The scatter that is seen scales all variances by one factor (Birge's), those within pairs too; it
  changes no weight. Q is the sum of squared deviations from the mean, each in units of its own
  variance; it is n - 1 on average where the variances are right. The factor is (1 + Q) / n: what is
  assumed counts as one further pair. Student's t with n degrees of freedom bounds the mean.
* Neighbouring pairs may be correlated, and a few pairs cannot tell. So from the second pair on the
  error is what it would be if neighbours were correlated by 0.3.

Every pair counts, none is clipped; an interval is that of the pairs so far, whatever earlier ones
said. `scripts/simulate_pairs.py` tries the plans in use (`gain.py`, `gate.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.records.bench.metrics import Metric
from gpurun.records.result import RunResult
from gpurun.stats.descriptive import SD_FLOOR, t_quantile, t_upper_tail

MOST_WEIGHT = 3.0
"""SPEC: no weight above three times the least."""
CORRELATION = 0.3
"""SPEC: neighbouring pairs are taken to be correlated by this."""
WIDENING = math.sqrt((1 + CORRELATION) / (1 - CORRELATION))
"""The effect of AR(1) noise, whose neighbours are so correlated, on the error of a mean."""
LOOKS = (2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Both plans look after so many pairs, the tuner's (`gain.py`) only up to 12."""
IN_TURN_SD = 0.025
"""Launches one after the other. Set by hand, not fitted: 0.9 % was seen on a quiet machine, 10 %
and more on a shared one. `scripts/record_live_pairs.py --in-turn` records what would fit it."""
LIVE_SD = 0.006
"""Live pairs where a busy GPU sets the pace, or the processor without one: 0.55 % over 30 recorded
pairs of eight workloads, 0.8 % at most (95 %; `scripts/record_live_pairs.py --fit`)."""
LOOSE_SD = 0.03
"""Live pairs where host or loader hold a GPU up: 2.9 % over 19 recorded pairs of SimpleNet,
ResNet-50 and minGPT, 4.5 % at most. Alone they give 1.1, 2.2 and 5.0 %."""
BUSY_PERCENT = 90.0
"""A GPU sets the pace if it works for so much of the time. By recorded runs on an H200: GPT-124M
from 96 % on, SimpleNet up to 81 %, ResNet-50 up to 80 % (one of eight launches: 98 %)."""
MEMORY_SD = 0.003
"""Peak memory of live pairs on a CPU: 0.3 %."""


@dataclass(frozen=True)
class Reading:
    """One pair: the logarithm of its ratio, the standard error of that within the pair, and `sd`,
    the assumed standard deviation of that logarithm between equal launches beyond the error."""

    log: float
    error: float
    sd: float


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


def estimate(readings: Sequence[Reading]) -> Estimate:
    """The estimate of at least one pair."""
    count, variances = len(readings), [one.sd**2 + one.error**2 for one in readings]
    least = 1 / max(variances)
    weights = [min(1 / variance, MOST_WEIGHT * least) for variance in variances]
    whole = math.fsum(weights)
    log = math.fsum(w * one.log for w, one in zip(weights, readings, strict=True)) / whole
    squares = math.fsum((r.log - log) ** 2 / v for r, v in zip(readings, variances, strict=True))
    scale = math.sqrt((1 + squares) / count)
    pair_sd = max(scale * math.sqrt(math.fsum(variances) / count), SD_FLOOR)
    share = math.fsum(w * w * v for w, v in zip(weights, variances, strict=True))
    error = max(scale * math.sqrt(share) / whole, SD_FLOOR / math.sqrt(count))
    return Estimate(log, error * (WIDENING if count > 1 else 1.0), count, pair_sd)


def is_loose(*sides: RunResult | None) -> bool:
    """True if host or loader hold up the GPU of a side, or nobody measured how busy it was."""
    on_gpu = [one for one in sides if one is not None and one.peak_reserved_bytes]
    return any(
        min([device.active_percent or 0.0 for device in one.devices], default=0.0) < BUSY_PERCENT
        for one in on_gpu
    )


def assumed_sd(metric: Metric, *, live: bool, loose: bool = False) -> float:
    """What equal launches are assumed to differ by in a metric; `live`: its turns measured it;
    `loose`: as `is_loose` says of its sides."""
    if metric is Metric.PEAK_MEMORY:
        return MEMORY_SD
    return IN_TURN_SD if not live else LOOSE_SD if loose else LIVE_SD


def reading(metric: Metric, log: float, error: float | None, loose: bool = False) -> Reading:
    """A pair of this logarithm; `error`: by its turns, None where no turns measured the metric."""
    return Reading(log, error or 0.0, assumed_sd(metric, live=error is not None, loose=loose))
