"""Curves as small text charts."""

from __future__ import annotations

import math
from collections.abc import Sequence

_SPARKS = "▁▂▃▄▅▆▇█"


def sparklines(curves: Sequence[Sequence[float | None]], width: int = 48) -> list[str]:
    """Curves as small text charts on one common scale; "!" marks NaN and infinity.

    Each character is the mean of its share of the points; a gap is a point that was not measured.
    """
    cells = [_buckets(curve, width) for curve in curves]
    finite = [v for curve in cells for v in curve if v is not None and math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return ["".join(_spark(v, low, high) for v in curve) for curve in cells]


def _buckets(curve: Sequence[float | None], width: int) -> list[float | None]:
    size = max(1, math.ceil(len(curve) / width))
    shares = [curve[i : i + size] for i in range(0, len(curve), size)]
    measured = [[v for v in share if v is not None] for share in shares]
    return [sum(share) / len(share) if share else None for share in measured]


def _spark(value: float | None, low: float, high: float) -> str:
    if value is None:
        return " "
    if not math.isfinite(value):
        return "!"
    share = (value - low) / (high - low) if high > low else 0.0
    return _SPARKS[min(len(_SPARKS) - 1, int(share * len(_SPARKS)))]
