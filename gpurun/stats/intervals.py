"""Confidence intervals that are too wide to be shown."""

from __future__ import annotations

WIDE = 4.0
"""The ends of an interval around 1 that are further apart than this factor say nothing."""


def says_nothing(interval: tuple[float, float]) -> bool:
    """True if an interval of a factor is so wide around 1 that it is better not shown."""
    low, high = interval
    return low <= 1.0 <= high and high > WIDE * low
