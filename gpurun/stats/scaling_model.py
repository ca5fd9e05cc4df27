"""From measured efficiencies to those of more devices: a latency-bandwidth model of the all-reduce.

A ring of N ranks passes each byte of the gradients 2 (N - 1) / N times in 2 (N - 1) messages
(Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009; the cost model is Hockney's). In
fractions of the step of the smallest count n, the step of N devices takes

    weak:    compute           + bandwidth 2 (N - 1) / N + latency 2 (N - 1)
    strong:  compute n / N     + bandwidth 2 (N - 1) / N + latency 2 (N - 1)

where bandwidth and latency are what is left of each after overlap with the backward pass: what was
hidden at the measured counts stays hidden. No parameter can be negative. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpurun.stats.descriptive import percentile_of_sorted, t_quantile

LARGEST = 1024
SMALLEST = 16
DRAWS = 400
"""Sets of efficiencies that the points may truly have, fitted one by one for the band."""
FARTHEST = 3.0
"""Half intervals that a drawn efficiency may be off: far beyond the percentiles that are read."""


@dataclass(frozen=True)
class MeasuredCount:
    """The efficiency at a count, as a fraction of the smallest one's.

    `interval`: 95 %, None where it is not known; `rounds`: how many it is the mean of.
    """

    gpus: int
    efficiency: float
    interval: tuple[float, float] | None = None
    rounds: int = 1


@dataclass(frozen=True)
class ScalingFit:
    """Parameters in steps of the smallest count; None: not among those fitted."""

    strong: bool
    smallest: int
    compute: float
    bandwidth: float | None
    latency: float | None

    def efficiency(self, gpus: int) -> float:
        """The fraction of the smallest count's throughput a device that is left at `gpus`."""
        columns = _columns(gpus, self.strong, self.smallest)
        values = (self.compute, self.bandwidth or 0.0, self.latency or 0.0)
        step = sum(x * value for x, value in zip(columns, values, strict=True))
        ideal = self.smallest / gpus if self.strong else 1.0
        return ideal / step


@dataclass(frozen=True)
class Projected:
    """A count beyond the measured ones, with the band of its efficiency."""

    gpus: int
    efficiency: float
    band: tuple[float, float]


@dataclass(frozen=True)
class Projection:
    """`fit` is the one to the points as they are. `assumptions`: one line each."""

    fit: ScalingFit
    points: tuple[Projected, ...]
    assumptions: tuple[str, ...]


def project(points: Sequence[MeasuredCount], strong: bool) -> Projection | None:
    """Fit the points (the smallest count among them) and look ahead to 16 ... 1,024 devices.

    None where fewer than two counts above 1 were measured: one of them cannot tell what grows
    with N from what does not.
    """
    if sum(point.gpus > 1 for point in points) < 2:
        return None
    ordered = sorted(points, key=lambda point: point.gpus)
    rows = [(p.gpus, p.efficiency) for p in ordered]
    free = [(0, 1, 2)] if len(rows) > 2 else [(0, 1), (0, 2)]
    best = _fit(rows, strong, free[0])
    source = np.random.default_rng(0)  # the same record from the same measurement
    drawn = [
        _fit(_drawn(ordered, source), strong, columns)
        for columns in free
        for _ in range(DRAWS // len(free))
    ]
    ahead = _counts_ahead(ordered[-1].gpus)
    return Projection(
        fit=best,
        points=tuple(_projected(gpus, best, drawn) for gpus in ahead),
        assumptions=_assumptions(len(rows), ordered),
    )


def _projected(gpus: int, best: ScalingFit, drawn: Sequence[ScalingFit]) -> Projected:
    estimate = best.efficiency(gpus)
    spread = sorted(fit.efficiency(gpus) for fit in drawn)
    low, high = percentile_of_sorted(spread, 2.5), percentile_of_sorted(spread, 97.5)
    return Projected(gpus, estimate, (min(low, estimate), max(high, estimate)))


def _counts_ahead(largest: int) -> tuple[int, ...]:
    first = int(math.log2(SMALLEST))
    last = int(math.log2(LARGEST))
    return tuple(2**power for power in range(first, last + 1) if 2**power > largest)


def _columns(gpus: int, strong: bool, smallest: int) -> tuple[float, float, float]:
    compute = smallest / gpus if strong else 1.0
    return compute, 2 * (gpus - 1) / gpus, 2.0 * (gpus - 1)


def _drawn(points: Sequence[MeasuredCount], source: np.random.Generator) -> list[tuple[int, float]]:
    """Efficiencies as they may truly be: t-distributed on the log scale, as the intervals are."""
    rows = []
    for point in points:
        efficiency = point.efficiency
        if point.interval is not None:
            freedom = max(point.rounds - 1, 1)
            half = math.log(point.interval[1] / point.interval[0]) / 2
            usual = t_quantile(freedom, 0.975)
            drawn = max(-FARTHEST, min(FARTHEST, float(source.standard_t(freedom)) / usual))
            efficiency *= math.exp(half * drawn)
        rows.append((point.gpus, efficiency))
    return rows


def _fit(rows: Sequence[tuple[int, float]], strong: bool, columns: Sequence[int]) -> ScalingFit:
    """Non-negative least squares of the relative error of the step's time."""
    from scipy.optimize import nnls

    smallest = rows[0][0]
    design = []
    for gpus, efficiency in rows:
        step = (smallest / gpus if strong else 1.0) / efficiency
        parts = _columns(gpus, strong, smallest)
        design.append([parts[column] / step for column in columns])
    values, _ = nnls(np.array(design), np.ones(len(design)))
    found = dict(zip(columns, map(float, values), strict=True))
    return ScalingFit(strong, smallest, found[0], found.get(1), found.get(2))


def _assumptions(count: int, points: Sequence[MeasuredCount]) -> tuple[str, ...]:
    lines = [
        "every link is as fast as those among the measured devices: links between nodes, which "
        "are slower, are not in the model",
        "a ring all-reduce; what overlaps with the backward pass at the measured counts still does",
        "loaders, storage and the balance of the ranks are as at the measured counts",
    ]
    if count == 2:
        lines.insert(
            0,
            "two counts cannot tell bandwidth from latency: the estimate is all bandwidth, the "
            "low end of its band all latency",
        )
    if any(p.interval is None and p.gpus != points[0].gpus for p in points):
        lines.append("a point without an interval is taken as exact: the band is too narrow")
    return tuple(lines)
