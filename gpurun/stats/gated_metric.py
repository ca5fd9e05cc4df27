"""Metrics under the gate of `gpurun bench --compare`: their pairs and thresholds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.errors import ExitCode, GpurunError
from gpurun.records.bench.metrics import Metric


@dataclass(frozen=True)
class Gated:
    """One metric under the gate: (baseline, current) of each pair in the order of the launches.

    `threshold`: the slowdown that fails (fraction). `errors`: the standard errors of ln of the
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
