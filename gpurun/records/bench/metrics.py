"""The metrics of a benchmark, and the slowdown of each as a fraction."""

from __future__ import annotations

import enum
import math


class Metric(enum.Enum):
    """A gated figure. Its slowdown is a fraction, positive where the current tree is worse.

    For throughput (samples/s) it is the throughput lost, 1 - current / baseline; for step time (s),
    1 - baseline / current. For peak memory (bytes) and energy (J) it is the growth, current /
    baseline - 1.
    """

    THROUGHPUT = "throughput"
    STEP_TIME = "step_time"
    PEAK_MEMORY = "peak_memory"
    ENERGY = "energy"
    GPU_UTILIZATION = "gpu_utilization"
    """In histories alone: an idle GPU makes a ratio of percents meaningless."""

    @property
    def higher_is_better(self) -> bool:
        """True if a smaller figure is the worse one."""
        return self in (Metric.THROUGHPUT, Metric.GPU_UTILIZATION)

    @property
    def default_threshold(self) -> float:
        """The slowdown that must not pass: memory is repeatable enough for a sharper one."""
        return 0.01 if self is Metric.PEAK_MEMORY else 0.05

    def log_worse(self, baseline: float, current: float) -> float:
        """The logarithm by which the current figure is worse; pairs average it."""
        return math.log(baseline / current if self is Metric.THROUGHPUT else current / baseline)

    def slowdown(self, log_worse: float) -> float:
        """The slowdown as a fraction."""
        return math.expm1(log_worse) if self._grows else -math.expm1(-log_worse)

    def log_of_slowdown(self, slowdown: float) -> float:
        """The inverse of `slowdown`."""
        return math.log1p(slowdown) if self._grows else -math.log1p(-slowdown)

    @property
    def _grows(self) -> bool:
        return self in (Metric.PEAK_MEMORY, Metric.ENERGY)


GATEABLE = tuple(metric for metric in Metric if metric is not Metric.GPU_UTILIZATION)
"""The metrics that can fail a comparison."""
