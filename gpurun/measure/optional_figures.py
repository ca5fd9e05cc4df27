"""Figures of which some were not measured (None): those that are known, their mean."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar, cast

N = TypeVar("N")


def known(values: Iterable[N | None]) -> list[N]:
    """The figures that were measured."""
    return [v for v in values if v is not None]


def shared(values: Iterable[N | None]) -> N | None:
    """The one value that all share; None if they differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that were measured; None if none was."""
    measured = known(values)
    return math.fsum(measured) / len(measured) if measured else None


def mean_record(records: Iterable[N | None]) -> N | None:
    """The mean of each field of those that were measured, None where one of them lacks it; None if
    none was measured."""
    measured = known(records)
    if not measured:
        return None

    def over(name: str) -> float | None:
        values = [getattr(one, name) for one in measured]
        return None if None in values else math.fsum(values) / len(values)

    first: Any = measured[0]
    return cast(N, type(first)(**{each.name: over(each.name) for each in fields(first)}))
