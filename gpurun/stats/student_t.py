"""Student's t distribution: quantiles and one-sided p-values."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=256)  # a plan asks for a handful of them, a simulation a million times
def t_quantile(freedom: int, probability: float) -> float:
    """Student's t that is undercut with `probability`, for `freedom` degrees of freedom."""
    from scipy.special import stdtrit  # scipy.stats has the same behind 0.7 s of imports

    return float(stdtrit(freedom, probability))


def t_upper_tail(freedom: int, t: float) -> float:
    """The probability that Student's t exceeds `t`: a one-sided p-value."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -t))
