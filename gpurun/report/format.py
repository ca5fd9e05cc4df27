"""Figures as text, in one place: three significant digits, units with a space, no false zeros."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpurun.stats.intervals import WIDE

_BYTE_UNITS = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))
_JOULE_UNITS = ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"))
_MINUS = "−"
_SPARKS = "▁▂▃▄▅▆▇█"


def number(value: float) -> str:
    """At least three significant digits: 0.0123, 4.56, 78.9, 1,234 (the integer part is kept)."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    if digits > 0 and round(abs(value), digits) >= 10.0 ** (3 - digits):
        digits -= 1  # 9.996 rounds up to 10.0
    return f"{value:,.{max(0, digits)}f}"


def byte_size(value: float) -> str:
    """Bytes in binary units: "1.20 GiB"."""
    for size, unit in _BYTE_UNITS:
        # From 1000 on, so that 1023.9 MiB does not take four digits.
        if value >= size * 1000 / 1024:
            return f"{number(value / size)} {unit}"
    return f"{value:.0f} B"


def duration(seconds: float) -> str:
    """A time span: "340 ms", "12.3 s", "2 min 05 s", "1 h 02 min"."""
    if seconds < 1:
        return milliseconds(seconds * 1e3)
    if seconds < 59.95:
        return f"{number(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if minutes else f"{hours} h"


def clock(seconds: float) -> str:
    """A running time that keeps its width: "1:05", "1:02:03"."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def milliseconds(value: float) -> str:
    """Milliseconds: "48.9 ms"."""
    return f"{number(value)} ms"


def joules(value: float) -> str:
    """Energy: "12.3 kJ"."""
    for size, unit in _JOULE_UNITS:
        if value >= size:
            return f"{number(value / size)} {unit}"
    return f"{number(value)} J"


def _factor_digits(value: float) -> str:
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{decimals}f}"


def factor(value: float) -> str:
    """A speedup in a table: "×2.31"."""
    return f"×{_factor_digits(value)}"


def times(value: float) -> str:
    """A speedup in a sentence: "2.31×"."""
    return f"{_factor_digits(value)}×"


def interval(bounds: tuple[float, float] | None) -> str | None:
    """A confidence interval of a factor, "2.25–2.37"; None where it has no finite bounds."""
    if bounds is None or not all(map(math.isfinite, bounds)):
        return None
    return f"{_factor_digits(bounds[0])}–{_factor_digits(bounds[1])}"


def percent(fraction: float) -> str:
    """A fraction as percent, "0.4 %"; what would round to zero is told as "< 0.1 %"."""
    value = fraction * 100
    if not math.isfinite(value):
        return str(value)
    if 0 < value < 0.05:
        return "< 0.1 %"
    return f"{value:,.1f} %" if abs(value) < 99.95 else f"{value:,.0f} %"


def signed_percent(fraction: float) -> str:
    """A change as percent with its sign: "+0.7 %", "−3.1 %"."""
    text = f"{abs(fraction) * 100:,.1f}"
    if text == "0.0":
        return "±0.0 %"
    return f"{_MINUS if fraction < 0 else '+'}{text} %"


def change_interval(low: float, high: float) -> str:
    """The interval of a change, "−3.1 % to +0.7 %"; "undecided" where it is so wide that it says
    nothing.
    """
    if low <= 0 <= high and 1 + high > WIDE * (1 + low):
        return "undecided"
    return f"{signed_percent(low)} to {signed_percent(high)}"


def p_value(value: float) -> str:
    """A p-value with its sign: "p = 0.0004", "p < 0.0001"."""
    if value < 0.0001:
        return "p < 0.0001"
    decimals = 4 if value < 0.01 else 3 if value < 0.1 else 2
    return f"p = {value:.{decimals}f}"


def count(amount: int, noun: str) -> str:
    """A number with its noun: "1 pair", "3 pairs"."""
    return f"{amount:,} {noun}" if amount == 1 else f"{amount:,} {noun}s"


def one_line(text: str, limit: int | None = None) -> str:
    """Foreign text (an exception, a reason) without line breaks and control characters."""
    words = "".join(c if c.isprintable() else " " for c in text).split()
    joined = " ".join(words)
    if limit is None or len(joined) <= limit:
        return joined
    return joined[: limit - 1].rstrip() + "…"


def knob_value(value: Any) -> str:
    """The value of a knob in short form: on, off, 8, max-autotune, workers=8 prefetch=4."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        if "batch_size" in value and "via" in value:
            return f"{value['batch_size']} (via {value['via']})"
        return " ".join(f"{k}={knob_value(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(knob_value(v) for v in value)
    return one_line(str(value), 40)


def knob_change(knob: str, value: Any) -> str:
    """One change as a row of the ladder names it: "loader_workers → 8"."""
    return f"{knob} → {knob_value(value)}"


def knobs_text(
    knobs: Mapping[str, Any], baseline: Mapping[str, Any] | None = None, width: int | None = None
) -> str:
    """The knobs that differ from the baseline, the latest last: "loader_workers 8, tf32".

    What does not fit into `width` is counted at the front ("+3, tf32"), since the last change is
    the one on trial.
    """
    base = baseline or {}
    changed = [_short_knob(k, v) for k, v in knobs.items() if k not in base or base[k] != v]
    changed += [f"without {k}" for k in base if k not in knobs]
    if not changed:
        return "as it is"
    for hidden in range(len(changed)):
        front = [f"+{hidden}"] if hidden else []
        text = ", ".join(front + changed[hidden:])
        if width is None or len(text) <= width:
            return text
    return one_line(text, width)


def _short_knob(knob: str, value: Any) -> str:
    return knob if value is True else f"{knob} {knob_value(value)}"


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
