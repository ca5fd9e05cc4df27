"""A standard deviation from a sample and from what was known before."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpurun.stats.descriptive import standard_deviation

SD_FLOOR = 0.002
"""Smallest standard deviation between launches (of a log ratio) that is believed: few may agree by
chance."""


def updated_deviation(
    values: Sequence[float], prior_sd: float, prior_freedom: int
) -> tuple[float, int]:
    """The standard deviation by a sample and by what was known before, and its degrees of freedom.

    The prior on the variance is a scaled inverse chi-squared one, worth `prior_freedom` values
    (Gelman et al., Bayesian Data Analysis, section 2.6). Student's t with that freedom then bounds
    the mean.
    """
    own = len(values) - 1
    freedom = own + prior_freedom
    squares = prior_freedom * prior_sd**2
    if own:
        squares += own * standard_deviation(values) ** 2
    return math.sqrt(squares / freedom), freedom
