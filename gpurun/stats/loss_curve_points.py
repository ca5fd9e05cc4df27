"""The losses of a launch in a bounded number of points, as its record keeps them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

from gpurun.records.bench.benchmark import LossCurve

LEVEL = 16
"""Points of one width; those after them are means of twice as many steps. 5,000 steps take 140."""
DIGITS = 9
"""Enough to tell any two numbers of float32 apart."""


def curve_of(losses: Sequence[float]) -> LossCurve | None:
    """The curve of losses by step: NaN where none was seen, infinity where it was not finite."""
    bad = next((step for step, loss in enumerate(losses) if math.isinf(loss)), None)
    finite = losses[:bad]
    points = tuple(_mean(finite[a:b]) for a, b in blocks(len(finite)))
    if bad is None and all(point is None for point in points):
        return None
    return LossCurve(points, None if bad is None else bad + 1)


def blocks(steps: int) -> Iterator[tuple[int, int]]:
    """First step, and first one after it, of each point, counted from 0; only whole blocks.

    They are the same for curves of any length, so that a short one can be compared with a long one.
    """
    start, width = 0, 1
    while True:
        for _ in range(LEVEL):
            if start + width > steps:
                return
            yield start, start + width
            start += width
        width *= 2


def steps_below(points: int) -> int:
    """A curve of so many points is of fewer steps than this: one more block is not whole."""
    return next(end for _, end in islice(blocks(1 << 62), points, None))


def _mean(losses: Sequence[float]) -> float | None:
    seen = [loss for loss in losses if not math.isnan(loss)]
    return float(f"{math.fsum(seen) / len(seen):.{DIGITS}g}") if seen else None
