"""What `gpurun bench --compare` can hold against a threshold, and what a loss of it is."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.errors import ExitCode, GpurunError


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

    def loss(self, log_worse: float) -> float:
        """The loss as a fraction."""
        return math.expm1(log_worse) if self._grows else -math.expm1(-log_worse)

    def log_of_loss(self, loss: float) -> float:
        """The inverse of `loss`."""
        return math.log1p(loss) if self._grows else -math.log1p(-loss)

    @property
    def _grows(self) -> bool:
        return self in (Metric.PEAK_MEMORY, Metric.ENERGY)


@dataclass(frozen=True)
class Gated:
    """One metric under the gate: (baseline, current) of each pair in the order of the launches.

    `threshold`: the loss that must not pass, a fraction. `errors`: the standard errors of ln of the
    ratio within each live pair, empty where no turns measured it.
    """

    metric: Metric
    pairs: Sequence[tuple[float, float]]
    threshold: float
    errors: Sequence[float] = ()

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise GpurunError(
                f"the threshold of {self.metric.value} is {self.threshold:g}",
                "give a fraction between 0 and 1: 0.05 for 5 %",
            )

    def log_worse(self) -> list[float]:
        """The d of each pair; refuses figures that are none, with the pair's number."""
        for number, pair in enumerate(self.pairs, 1):
            for side, figure in zip(("baseline", "current"), pair, strict=True):
                if not (math.isfinite(figure) and figure > 0):
                    raise GpurunError(
                        f"{self.metric.value} of the {side} in pair {number} is {figure:g}: "
                        "nothing was measured",
                        "look at that launch's record, or do not gate this metric",
                        ExitCode.BENCHMARK_FAILED,
                    )
        return [self.metric.log_worse(*pair) for pair in self.pairs]
