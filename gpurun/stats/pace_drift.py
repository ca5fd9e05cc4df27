"""Does a series of step times drift from its beginning to its end?

The series is cut into windows of equal length. Medians of windows ignore steps that stand out, such
as the first one of an epoch or one with an evaluation before it. The first quarter of the windows
is compared with the last quarter, by the noise of neighbouring windows, whose trend does not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpurun.stats.descriptive import MEDIAN_ERROR, median, median_deviation

WINDOWS = 12
LEAST_STEPS = 20 * WINDOWS
"""A shorter series tells nothing."""
LEAST_CHANGE = 0.05
"""A fraction of throughput below which a drift is not worth a word."""
SURE = 4.0
"""A drift is so many standard errors away from none."""


@dataclass(frozen=True)
class PaceDrift:
    """Typical step times at both ends. `change`: of throughput, a fraction, negative is slower."""

    first_quarter: float
    last_quarter: float

    @property
    def change(self) -> float:
        """Relative change of throughput from the first to the last quarter."""
        return self.first_quarter / self.last_quarter - 1


def pace_drift(durations: Sequence[float]) -> PaceDrift | None:
    """The drift of a series of step times; None if there is none to speak of, or too few steps."""
    length = len(durations) // WINDOWS
    if length * WINDOWS < LEAST_STEPS:
        return None
    windows = [median(durations[n * length : (n + 1) * length]) for n in range(WINDOWS)]
    if min(windows) <= 0:
        return None
    quarter = WINDOWS // 4
    drift = PaceDrift(median(windows[:quarter]), median(windows[-quarter:]))
    difference = abs(math.log(drift.first_quarter / drift.last_quarter))
    certain = difference > SURE * _standard_error(windows, quarter)
    return drift if certain and abs(drift.change) > LEAST_CHANGE else None


def _standard_error(windows: Sequence[float], quarter: int) -> float:
    """Of the logarithm of the ratio of two quarters' medians."""
    steps = [math.log(after / before) for before, after in pairwise(windows)]
    noise = median_deviation(steps) / math.sqrt(2)
    return MEDIAN_ERROR * noise * math.sqrt(2 / quarter)
