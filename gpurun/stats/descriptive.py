"""Descriptive statistics: means, standard deviation, median and percentiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

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


WIDE = 4.0
"""The ends of an interval around 1 that are further apart than this factor say nothing."""


def says_nothing(interval: tuple[float, float]) -> bool:
    """True if an interval of a factor is so wide around 1 that it is better not shown."""
    low, high = interval
    return low <= 1.0 <= high and high > WIDE * low


@lru_cache(maxsize=256)  # a plan asks for a handful of them, a simulation a million times
def t_quantile(freedom: int, probability: float) -> float:
    """Student's t that is undercut with `probability`, for `freedom` degrees of freedom."""
    from scipy.special import stdtrit  # scipy.stats has the same behind 0.7 s of imports

    return float(stdtrit(freedom, probability))


def t_upper_tail(freedom: int, t: float) -> float:
    """The probability that Student's t exceeds `t`: a one-sided p-value."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -t))


def chance_of_more(ours: tuple[int, int], theirs: tuple[int, int]) -> float:
    """Probability that so many more of ours have a property, if it is as frequent in both.

    Each pair is the number of those with it, and of all. Fisher's exact test, one-sided.
    """
    from scipy.stats import fisher_exact

    table = [[with_it, of_all - with_it] for with_it, of_all in (ours, theirs)]
    return float(fisher_exact(table, alternative="greater").pvalue)
