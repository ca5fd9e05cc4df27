"""Charts as SVG text. Colours are classes of the page's style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gpurun.formatting.one_line import one_line
from gpurun.report.page.charts import (
    Bar,
    BarChart,
    Chart,
    Line,
    LineChart,
    Point,
    Span,
    SpanChart,
)

WIDTH = 480
"""Units of every picture's width; letters of 13 units stay readable on a phone."""
ROW, WORDS, BAR, TITLE = 44.0, 22.0, 14.0, 26.0
"""Height of a row (its words and its bar), of words alone, of a bar, and of the title."""
LEGEND_ROW, LEGEND_COLUMNS = 19.0, 3
NAME_LENGTH = 38
"""Characters of a name that leave room for the figure on the other side."""
LEFT, RIGHT, BOTTOM, PLOT = 62.0, 14.0, 42.0, 150.0
"""Units around the plot of lines, and its height."""
HEADING, LINE_ROW = 32.0, 17.0
"""Height of the title of lines, and of a row of their legend."""
COLOURS = 8
LETTER = 9.0
"""Width of a digit, at most."""
LINE_NAME_LENGTH = 44


def svg(chart: Chart) -> str:
    """The picture of a chart."""
    if isinstance(chart, BarChart):
        return _bars(chart)
    return _spans(chart) if isinstance(chart, SpanChart) else _lines(chart)


def _bars(chart: BarChart) -> str:
    reach = [x for b in chart.bars if b.drawable for x in (b.value, *(b.bounds or ()))]
    scale = WIDTH / (max([*reach, chart.mark or 0.0]) or 1.0)
    drawn, y = [_text(chart.title, 0, 15, "h")], TITLE
    for bar in chart.bars:
        drawn += _row_words(bar.name, bar.told, y, "b" if bar.strong else "t")
        if bar.drawable:
            drawn += _bar(bar, y + WORDS, scale)
            if chart.mark is not None:
                drawn.append(_mark(min(chart.mark * scale, WIDTH - 1), y + WORDS))
        y += ROW if bar.drawable else WORDS
    return _picture(chart.title, y, drawn)


def _row_words(name: str, told: str, y: float, kind: str) -> list[str]:
    left = _text(one_line(name, NAME_LENGTH), 0, y + 16, kind)
    return [left, _text(told, WIDTH, y + 16, kind, "end")]


def _bar(bar: Bar, y: float, scale: float) -> list[str]:
    drawn = [_rectangle(0, y, bar.value * scale, "f1" if bar.strong else "f0")]
    if bar.bounds is not None:
        (low, high), middle = bar.bounds, y + BAR / 2
        line = _element("line", x1=low * scale, x2=high * scale, y1=middle, y2=middle, class_="w")
        drawn.append(line)
    return drawn


def _mark(x: float, y: float) -> str:
    return _element("line", x1=x, x2=x, y1=y - 3, y2=y + BAR + 3, class_="m")


def _spans(chart: SpanChart) -> str:
    """A name that no span has is left out of the legend; the others keep their colours."""
    scale = WIDTH / (chart.width or 1.0)
    drawn = [_text(chart.title, 0, 15, "h")]
    for number, (name, told, spans) in enumerate(chart.rows):
        y = TITLE + ROW * number
        drawn += _row_words(name, told, y, "t")
        drawn += [_span(span, y + WORDS, scale) for span in spans if span.end > span.begin]
    below = TITLE + ROW * len(chart.rows) + 6
    used = chart.colours_used
    drawn += [_span_name(chart.names[i], i, place, below) for place, i in enumerate(used)]
    legend_rows = -(-len(used) // LEGEND_COLUMNS)
    return _picture(chart.title, below + LEGEND_ROW * legend_rows, drawn)


def _span(span: Span, y: float, scale: float) -> str:
    length, height = (span.end - span.begin) * scale, BAR * span.filled
    return _rectangle(span.begin * scale, y + BAR - height, length, f"f{span.colour}", height)


def _span_name(name: str, index: int, place: int, y: float) -> str:
    row, column = divmod(place, LEGEND_COLUMNS)
    x, y = column * WIDTH / LEGEND_COLUMNS, y + row * LEGEND_ROW
    swatch = _element("rect", x=x, y=y + 2, width=12, height=12, class_=f"f{index}")
    return swatch + _text(name, x + 18, y + 13)


def _rectangle(x: float, y: float, width: float, colour: str, height: float = BAR) -> str:
    return _element("rect", x=x, y=y, width=max(width, 0.5), height=height, class_=colour)


def _lines(chart: LineChart) -> str:
    title, lines = chart.title, chart.finite_lines
    if not lines:
        return _picture(title, HEADING, [_text(title, 0, 15, "h")])
    legend = lines if len(lines) > 1 else []
    frame, levels = _frame(chart, lines, HEADING + LINE_ROW * len(legend))
    drawn = [_text(title, 0, 15, "h")]
    drawn += [_line_name(line, n, 22.0 + LINE_ROW * n) for n, line in enumerate(legend)]
    drawn += [_level(frame, level) for level in levels]
    drawn += _horizontal_axis(frame, chart.x_name, chart.x_ticks)
    for number, line in reversed([*enumerate(lines)]):  # an equal, longer one lies below
        drawn += _line(frame, line, number)
    return _picture(title, frame.top + PLOT + BOTTOM, drawn)


def _frame(chart: LineChart, lines: Sequence[Line], top: float) -> tuple[_Frame, Sequence[float]]:
    """The frame around the lines, and the levels that it marks."""
    xs = [x for line in lines for x, _ in line.points]
    xs += [] if chart.x_from is None else [chart.x_from]
    ys = [y for line in lines for _, y in line.points] + ([0.0] if chart.from_zero else [])
    low, high = spread(ys if chart.y_to is None else [*ys, chart.y_to])
    levels = ticks(max(low, 0.0) if chart.from_zero and min(ys) >= 0 else low, high)
    return _Frame((min(xs), max(xs)), (levels[0], levels[-1]), top), levels


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


def _line_name(line: Line, number: int, y: float) -> str:
    swatch = _path([(0.0, y + 8), (26.0, y + 8)], number, line.dashed)
    return swatch + _text(one_line(line.name, LINE_NAME_LENGTH), 34, y + 12)


def _level(frame: _Frame, level: float) -> str:
    y = frame.y(level)
    rule = _element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="g")
    return rule + _text(tick_text(level), LEFT - 6, y + 4, "t", "end")


def _horizontal_axis(frame: _Frame, name: str, marks: Sequence[float]) -> list[str]:
    low, high = frame.x_range
    if not marks and high > low:
        marks = [x for x in ticks(low, high, 5) if low <= x <= high]
    below = frame.top + PLOT
    places = _apart([(frame.x(x), tick_text(x)) for x in marks or (low,)])
    drawn = [_text(told, x, below + 17, "t", "middle") for x, told in places]
    return [*drawn, _text(name, (LEFT + WIDTH - RIGHT) / 2, below + 36, "t", "middle")]


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
    return drawn + [_element("circle", cx=x, cy=y, r=3.5, class_=colour) for x, y in dots]


def _path(places: Sequence[Point], number: int, dashed: bool) -> str:
    told = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    kind = f"l s{number % COLOURS}{' d' if dashed else ''}"
    return _element("polyline", points=told, class_=kind)


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


def _element(name: str, content: str = "", /, **attributes: str | float) -> str:
    """An element whose content is SVG already. `class_` and `text_anchor` become attributes."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{told}>{content}</{name}>" if content else f"<{name}{told}/>"


def _text(words: str, x: float, y: float, kind: str = "", anchor: str = "start") -> str:
    """Foreign text at a place; `kind` is a class of the style."""
    content = escape(one_line(words))
    return _element("text", content, x=x, y=y, class_=kind or "t", text_anchor=anchor)


def _picture(title: str, height: float, elements: list[str]) -> str:
    """A picture with a size and a name for screen readers."""
    return _element(
        "svg",
        "".join(elements),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {_number(height)}",
        width=WIDTH,
        height=height,
        role="img",
        aria_label=one_line(title),
    )


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
