"""Correlation between neighbours in a series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from gpurun.stats.descriptive import mean


def lag_one_correlation(values: Sequence[float]) -> float | None:
    """Correlation of neighbours in a series, as it is estimated; None where all values are equal.

    For n values of true correlation rho the estimate is biased by about -(1 + 4 rho) / n (Kendall,
    Biometrika 41, 1954), and its standard error is about 1 / sqrt(n).
    """
    center = mean(values)
    rest = [v - center for v in values]
    total = math.fsum(r * r for r in rest)
    if total == 0:
        return None
    return math.fsum(a * b for a, b in pairwise(rest)) / total
