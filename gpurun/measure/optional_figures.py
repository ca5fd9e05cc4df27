"""Means over figures of which some were not measured (None)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

N = TypeVar("N")


def known(values: Iterable[N | None]) -> list[N]:
    """The figures that were measured."""
    return [v for v in values if v is not None]


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that were measured; None if none was."""
    measured = known(values)
    return math.fsum(measured) / len(measured) if measured else None
