"""How fast a training is with several numbers of loader workers, from turns of one process. Pure.

All turns are of one process, so the scatter of repeated ones is taken to be the same for every
number: it is pooled over them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gpurun.records.facts import WorkerRate

WITHIN = 0.02
"""Rates this close are alike: a change that gains less is not kept either."""
ALIKE = 0.05
"""The same where no number had a second turn: disturbed turns of one process differ by so much."""


def worker_rates(turns: Mapping[int, Sequence[float]]) -> tuple[WorkerRate, ...]:
    """The rate of each number, fewest workers first, with the relative error of its mean.

    `turns`: the rates of its turns, by number. Without a second turn of any the error is None.
    """
    logs = {number: [math.log(rate) for rate in rates] for number, rates in turns.items()}
    means = {number: sum(seen) / len(seen) for number, seen in logs.items()}
    free = sum(len(seen) - 1 for seen in logs.values())
    squares = sum((x - means[number]) ** 2 for number, seen in logs.items() for x in seen)
    scatter = math.sqrt(squares / free) if free else None
    return tuple(
        WorkerRate(
            number,
            math.exp(means[number]),
            None if scatter is None else scatter / math.sqrt(len(logs[number])),
        )
        for number in sorted(logs)
    )


def enough_workers(rates: Sequence[WorkerRate]) -> int:
    """The smallest number whose rate is within the noise of the best one."""
    best = max(rates, key=lambda rate: rate.samples_per_second)
    return next(rate.workers for rate in rates if lost(rate, best) <= noise(rate, best))


def lost(rate: WorkerRate, best: WorkerRate) -> float:
    """By how much a rate is below the best, as a logarithm."""
    return math.log(best.samples_per_second / rate.samples_per_second)


def noise(rate: WorkerRate, best: WorkerRate) -> float:
    """By how much two rates may differ and count as alike."""
    if rate.error is None or best.error is None:
        return ALIKE
    return max(WITHIN, math.hypot(rate.error, best.error))
