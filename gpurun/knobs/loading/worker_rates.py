"""How fast a training is with several numbers of loader workers, by turns of one process."""

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

    `turns`: rates by number. Their scatter is pooled over all numbers: they are of one process.
    """
    logs = {number: [math.log(rate) for rate in rates] for number, rates in sorted(turns.items())}
    means = {number: sum(seen) / len(seen) for number, seen in logs.items()}
    free = sum(len(seen) - 1 for seen in logs.values())
    squares = sum((x - means[number]) ** 2 for number, seen in logs.items() for x in seen)
    return tuple(
        WorkerRate(
            number, math.exp(means[number]), math.sqrt(squares / free / len(seen)) if free else None
        )
        for number, seen in logs.items()
    )


def enough_workers(rates: Sequence[WorkerRate]) -> int:
    """The smallest number whose rate is within the noise of the best one."""
    best = max(rates, key=lambda rate: rate.samples_per_second)

    def alike(rate: WorkerRate) -> bool:
        noise = ALIKE
        if rate.error is not None and best.error is not None:
            noise = max(WITHIN, math.hypot(rate.error, best.error))
        return math.log(best.samples_per_second / rate.samples_per_second) <= noise

    return next(rate.workers for rate in rates if alike(rate))
