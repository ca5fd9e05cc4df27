"""Speedup and efficiency from launches of several counts in turn. Pure functions.

The unit is the launch. Launches of one round follow each other closely, so drift between rounds
cancels in their ratio. The interval is Student's t on the logarithm of these ratios.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gpurun.stats.descriptive import SD_FLOOR, geometric_mean, mean, standard_deviation
from gpurun.stats.student_t import t_quantile


@dataclass(frozen=True)
class Efficiency:
    """`speedup`: factor; `efficiency`: fraction; `interval`: 95 %, None with fewer than 2 rounds
    and for the count that all are compared with."""

    speedup: float
    efficiency: float
    interval: tuple[float, float] | None
    rounds: int


def efficiencies(rates: Mapping[int, Mapping[int, float]]) -> dict[int, Efficiency]:
    """By count, against the smallest one. `rates`: by count and round, work a second of all ranks.

    A count that shares no round with the smallest one has none.
    """
    measured = {count: by_round for count, by_round in rates.items() if by_round}
    if not measured:
        return {}
    smallest = min(measured)
    base = measured[smallest]
    found = {smallest: Efficiency(1.0, 1.0, None, len(base))}
    for count, by_round in sorted(measured.items()):
        ratios = [by_round[k] / base[k] for k in sorted(by_round.keys() & base.keys())]
        if count != smallest and ratios:
            found[count] = compared(ratios, count / smallest)
    return found


def compared(ratios: list[float], factor: float) -> Efficiency:
    """The efficiency from ratios of throughput within rounds; `factor` would be ideal."""
    logs = [math.log(ratio / factor) for ratio in ratios]
    efficiency = math.exp(mean(logs))
    return Efficiency(geometric_mean(ratios), efficiency, _interval(logs), len(logs))


def _interval(logs: list[float]) -> tuple[float, float] | None:
    count = len(logs)
    if count < 2:
        return None
    error = max(standard_deviation(logs), SD_FLOOR) / math.sqrt(count)
    half = t_quantile(count - 1, 0.975) * error
    center = mean(logs)
    return math.exp(center - half), math.exp(center + half)
