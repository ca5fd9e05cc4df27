"""Metrics of a benchmark, and what a loss of each is."""

from __future__ import annotations

import enum
import math


class Metric(enum.Enum):
    """What may be gated. Its loss is a fraction, positive where the current tree is worse.

    Of the throughput (samples/s) and of the step time (s) that is the throughput lost, 1 - current
    / baseline and 1 - baseline / current; of the peak memory (bytes) and of the energy (J) it is
    the growth, current / baseline - 1.
    """

    THROUGHPUT = "throughput"
    STEP_TIME = "step_time"
    PEAK_MEMORY = "peak_memory"
    ENERGY = "energy"

    @property
    def default_threshold(self) -> float:
        """The loss that must not pass: memory is repeatable enough for a sharper one."""
        return 0.01 if self is Metric.PEAK_MEMORY else 0.05

    def log_worse(self, baseline: float, current: float) -> float:
        """How much worse, on the scale on which pairs are averaged."""
        return math.log(baseline / current if self is Metric.THROUGHPUT else current / baseline)

    def slowdown(self, log_worse: float) -> float:
        """The loss as a fraction."""
        return math.expm1(log_worse) if self._grows else -math.expm1(-log_worse)

    def log_of_slowdown(self, loss: float) -> float:
        """The inverse of `loss`."""
        return math.log1p(loss) if self._grows else -math.log1p(-loss)

    @property
    def _grows(self) -> bool:
        return self in (Metric.PEAK_MEMORY, Metric.ENERGY)
