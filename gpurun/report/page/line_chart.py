"""Lines over time, over steps or over devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpurun.formatting.one_line import one_line
from gpurun.report.page.svg_elements import WIDTH, element, svg_picture, text
from gpurun.report.page.thinning import Point

LEFT, RIGHT, BOTTOM, PLOT = 62.0, 14.0, 42.0, 150.0
"""Units around the plot, and its height."""
HEADING, ROW = 32.0, 17.0
"""Height of the title, and of a line of the legend."""
COLOURS = 8
LETTER = 9.0
"""Width of a digit, at most."""
NAME_LENGTH = 44


@dataclass(frozen=True)
class Line:
    """A named series. `dashed`: no measurement; `dots`: each point is marked."""

    name: str
    points: Sequence[Point]
    dashed: bool = False
    dots: bool = False


def line_chart(
    title: str,
    lines: Sequence[Line],
    x_name: str,
    from_zero: bool = True,
    x_ticks: Sequence[float] = (),
    x_from: float | None = None,
    y_to: float | None = None,
) -> str:
    """The picture of the finite points of lines; `from_zero`: the vertical axis includes 0.

    `x_from`: where the horizontal axis begins at the latest. `y_to`: where the vertical one ends
    at the earliest.
    """
    lines = [line for each in lines if (line := _finite(each)).points]
    if not lines:
        return svg_picture(title, HEADING, [text(title, 0, 15, "h")])
    legend = lines if len(lines) > 1 else []
    top = HEADING + ROW * len(legend)
    xs = [x for line in lines for x, _ in line.points] + ([] if x_from is None else [x_from])
    ys = [y for line in lines for _, y in line.points] + ([0.0] if from_zero else [])
    low, high = spread(ys if y_to is None else [*ys, y_to])
    levels = ticks(max(low, 0.0) if from_zero and min(ys) >= 0 else low, high)
    frame = _Frame((min(xs), max(xs)), (levels[0], levels[-1]), top)
    drawn = [text(title, 0, 15, "h")]
    drawn += [_legend_entry(line, n, 22.0 + ROW * n) for n, line in enumerate(legend)]
    drawn += [_level(frame, level) for level in levels]
    drawn += _horizontal_axis(frame, x_name, x_ticks)
    for number, line in reversed([*enumerate(lines)]):  # an equal, longer one lies below
        drawn += _line(frame, line, number)
    return svg_picture(title, top + PLOT + BOTTOM, drawn)


@dataclass(frozen=True)
class _Frame:
    """Where values lie in the picture."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    top: float

    def x(self, value: float) -> float:
        low, high = self.x_range
        share = (value - low) / (high - low) if high > low else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.top + PLOT * (high - value) / (high - low)


def _finite(line: Line) -> Line:
    return replace(line, points=[p for p in line.points if all(map(math.isfinite, p))])


def _legend_entry(line: Line, number: int, y: float) -> str:
    swatch = _path([(0.0, y + 8), (26.0, y + 8)], number, line.dashed)
    return swatch + text(one_line(line.name, NAME_LENGTH), 34, y + 12)


def _level(frame: _Frame, level: float) -> str:
    y = frame.y(level)
    rule = element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="g")
    return rule + text(tick_text(level), LEFT - 6, y + 4, "t", "end")


def _horizontal_axis(frame: _Frame, name: str, marks: Sequence[float]) -> list[str]:
    low, high = frame.x_range
    if not marks and high > low:
        marks = [x for x in ticks(low, high, 5) if low <= x <= high]
    below = frame.top + PLOT
    places = _apart([(frame.x(x), tick_text(x)) for x in marks or (low,)])
    drawn = [text(told, x, below + 17, "t", "middle") for x, told in places]
    return [*drawn, text(name, (LEFT + WIDTH - RIGHT) / 2, below + 36, "t", "middle")]


def _apart(places: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Labels from left to right without those that would touch the next one."""
    kept = places[-1:]
    for x, told in reversed(places[:-1]):
        if kept[0][0] - x >= LETTER * (len(told) + len(kept[0][1])) / 2 + LETTER:
            kept.insert(0, (x, told))
    return kept


def _line(frame: _Frame, line: Line, number: int) -> list[str]:
    places = [(frame.x(x), frame.y(y)) for x, y in line.points]
    dots = places if line.dots or len(places) == 1 else []
    colour = f"f{number % COLOURS}"
    drawn = [_path(places, number, line.dashed)] if len(places) > 1 else []
    return drawn + [element("circle", cx=x, cy=y, r=3.5, class_=colour) for x, y in dots]


def _path(places: Sequence[Point], number: int, dashed: bool) -> str:
    told = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    kind = f"l s{number % COLOURS}{' d' if dashed else ''}"
    return element("polyline", points=told, class_=kind)


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
