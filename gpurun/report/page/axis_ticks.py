"""Round numbers along an axis."""

from __future__ import annotations

import math


def ticks(low: float, high: float, about: int = 4) -> tuple[float, ...]:
    """Round numbers that enclose the range, some `about` steps apart; low is below high."""
    step = _round_step((high - low) / about)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(number * step for number in range(first, last + 1))


def tick_text(value: float) -> str:
    """A round number without false zeros: 0.5, 20, 40,000."""
    return f"{value:,.6f}".rstrip("0").rstrip(".") if abs(value) >= 1e-4 else f"{value:.3g}"


def spread(values: list[float]) -> tuple[float, float]:
    """The range of the values, made wide enough to draw in."""
    low, high = min(values), max(values)
    room = (abs(high) * 0.05 or 1.0) if high - low <= 1e-9 * abs(high) else 0.0
    return low - room, high + room


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= step * (1 - 1e-9))
