"""Descriptive statistics: means, standard deviation, median and percentiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

SD_FLOOR = 0.002
"""Smallest standard deviation between launches (of a log ratio) that is believed: few may agree by
chance."""
MEDIAN_ERROR = 1.2533
"""The standard error of a median of normal values over that of their mean."""


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def standard_deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample: at least two values, n - 1 degrees of freedom."""
    center = mean(values)
    return math.sqrt(math.fsum((v - center) ** 2 for v in values) / (len(values) - 1))


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile by linear interpolation between order statistics (numpy's default)."""
    return percentile_of_sorted(sorted(values), percent)


def percentile_of_sorted(ordered: Sequence[float], percent: float) -> float:
    """As `percentile`, for values that are sorted already."""
    if not ordered:
        raise ValueError("a percentile needs at least one value")
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return percentile(values, 50)


def median_deviation(values: Sequence[float]) -> float:
    """1.4826 times the median distance from the median: of normal values the standard deviation."""
    center = median(values)
    return 1.4826 * median([abs(value - center) for value in values])


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def root_mean_square(values: Sequence[float]) -> float:
    """The root of the mean of squares; 0 for none."""
    return math.sqrt(math.fsum(x * x for x in values) / len(values)) if values else 0.0
