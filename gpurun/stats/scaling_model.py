"""From measured efficiencies to those of more devices: a latency-bandwidth model of the all-reduce.

A ring of N ranks passes each byte of the gradients 2 (N - 1) / N times in 2 (N - 1) messages
(Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009; the cost model is Hockney's). In
fractions of the step of the smallest count n, the step of N devices takes

    weak:    compute           + bandwidth 2 (N - 1) / N + latency 2 (N - 1)
    strong:  compute n / N     + bandwidth 2 (N - 1) / N + latency 2 (N - 1)

where bandwidth and latency are what is left of each after overlap with the backward pass: what was
hidden at the measured counts stays hidden. No parameter can be negative, so all subsets of them are
fitted by least squares and the best one without a negative value is taken; with three parameters
that is quicker than any solver. Pure functions, no scipy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from gpurun.stats.descriptive import percentile_of_sorted
from gpurun.stats.student_t import t_quantile

LARGEST = 1024
SMALLEST = 16
DRAWS = 400
"""Sets of efficiencies that the points may truly have, fitted one by one for the band."""
FARTHEST = 3.0
"""Half intervals that a drawn efficiency may be off: far beyond the percentiles that are read."""
TINY = 1e-12


@dataclass(frozen=True)
class Measured:
    """The efficiency at a count, as a fraction of the smallest one's.

    `interval`: 95 %, None where it is not known; `rounds`: how many it is the mean of.
    """

    gpus: int
    efficiency: float
    interval: tuple[float, float] | None = None
    rounds: int = 1


@dataclass(frozen=True)
class Fit:
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

    fit: Fit
    points: tuple[Projected, ...]
    assumptions: tuple[str, ...]


def project(points: Sequence[Measured], strong: bool) -> Projection | None:
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
    random_source = random.Random(0)  # the same record from the same measurement
    drawn = [
        _fit(_drawn(ordered, random_source), strong, columns)
        for columns in free
        for _ in range(DRAWS // len(free))
    ]
    ahead = _counts_ahead(ordered[-1].gpus)
    return Projection(
        fit=best,
        points=tuple(_projected(gpus, best, drawn) for gpus in ahead),
        assumptions=_assumptions(len(rows), ordered),
    )


def _projected(gpus: int, best: Fit, drawn: Sequence[Fit]) -> Projected:
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


def _drawn(points: Sequence[Measured], source: random.Random) -> list[tuple[int, float]]:
    """Efficiencies as they may truly be: t-distributed on the log scale, as the intervals are."""
    rows = []
    for point in points:
        efficiency = point.efficiency
        if point.interval is not None:
            freedom = max(point.rounds - 1, 1)
            half = math.log(point.interval[1] / point.interval[0]) / 2
            usual = t_quantile(freedom, 0.975)
            drawn = max(-FARTHEST, min(FARTHEST, _student(freedom, source) / usual))
            efficiency *= math.exp(half * drawn)
        rows.append((point.gpus, efficiency))
    return rows


def _student(freedom: int, source: random.Random) -> float:
    """A draw of Student's t."""
    chi_square = 2 * source.gammavariate(freedom / 2, 1.0)
    return source.gauss(0.0, 1.0) / math.sqrt(max(chi_square / freedom, TINY))


def _fit(rows: Sequence[tuple[int, float]], strong: bool, columns: Sequence[int]) -> Fit:
    """Non-negative least squares of the relative error of the step's time."""
    smallest = rows[0][0]
    design = []
    for gpus, efficiency in rows:
        step = (smallest / gpus if strong else 1.0) / efficiency
        design.append([x / step for x in _columns(gpus, strong, smallest)])
    best: tuple[float, dict[int, float]] = (math.inf, {0: 1.0})
    for size in range(1, len(columns) + 1):
        for chosen in combinations(columns, size):
            if 0 not in chosen:
                continue  # a step without work of its own is none
            values = _least_squares([[row[c] for c in chosen] for row in design])
            if values is None or min(values) < 0:
                continue
            left = sum(
                (1 - sum(row[c] * v for c, v in zip(chosen, values, strict=True))) ** 2
                for row in design
            )
            if left < best[0] - TINY:
                best = (left, dict(zip(chosen, values, strict=True)))
    found = best[1]
    return Fit(
        strong=strong,
        smallest=smallest,
        compute=found[0],
        bandwidth=found.get(1, 0.0) if 1 in columns else None,
        latency=found.get(2, 0.0) if 2 in columns else None,
    )


def _least_squares(rows: Sequence[Sequence[float]]) -> list[float] | None:
    """The values by which the columns come nearest to 1 in every row; None if they depend."""
    size = len(rows[0])
    if len(rows) < size:
        return None
    normal = [
        [*(sum(row[i] * row[j] for row in rows) for j in range(size)), sum(row[i] for row in rows)]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(normal[k][i]))
        if abs(normal[pivot][i]) < TINY:
            return None
        normal[i], normal[pivot] = normal[pivot], normal[i]
        for k in range(size):
            if k != i:
                share = normal[k][i] / normal[i][i]
                normal[k] = [a - share * b for a, b in zip(normal[k], normal[i], strict=True)]
    return [normal[i][size] / normal[i][i] for i in range(size)]


def _assumptions(count: int, points: Sequence[Measured]) -> tuple[str, ...]:
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
