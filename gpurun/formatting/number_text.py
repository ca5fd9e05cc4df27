"""Numbers as text: three significant digits, units with a space, no false zeros."""

from __future__ import annotations

import math
from collections.abc import Callable

from gpurun.stats.descriptive import WIDE

_BYTE_UNITS = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))
_JOULE_UNITS = ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"))
_MINUS = "−"


def if_known(show: Callable[[float], str], value: float | None) -> str:
    """A figure as `show` writes it; "" where it was not measured."""
    return "" if value is None else show(value)


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
    if not math.isfinite(seconds):
        return f"{seconds} s"
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


def flops(value: float) -> str:
    """Floating-point operations: "12.3 TFLOP"."""
    for size, unit in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")):
        if value >= size:
            return f"{number(value / size)} {unit}"
    return f"{number(value)} FLOP"


def joules(value: float) -> str:
    """Energy: "12.3 kJ"."""
    for size, unit in _JOULE_UNITS:
        if value >= size:
            return f"{number(value / size)} {unit}"
    return f"{number(value)} J"


KWH = 3.6e6
"""Joules."""


def energy_text(value: float, beside: float = 0.0) -> str:
    """Energy as a bill has it: kWh if it or the one beside it is a hundredth, else joules."""
    return f"{number(value / KWH)} kWh" if max(value, beside) >= KWH / 100 else joules(value)


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
    """A fraction as percent, "0.4 %"; a value that would round to zero is shown as "< 0.1 %"."""
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


def count(amount: float, noun: str) -> str:
    """A number with its noun: "1 pair", "3 pairs", "2 launches"."""
    ending = "es" if noun.endswith(("s", "x", "nch", "tch", "sh")) else "s"
    return f"{amount:,.15g} {noun}{'' if amount == 1 else ending}"
