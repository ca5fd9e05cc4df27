"""Horizontal bars: one a row, or the parts of a whole one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from gpurun.formatting.one_line import one_line
from gpurun.report.page.svg_elements import WIDTH, element, svg_picture, text

ROW, WORDS, BAR, TITLE = 44.0, 22.0, 14.0, 26.0
"""Height of a row (its words and its bar), of words alone, of a bar, and of the title."""
LEGEND_ROW, LEGEND_COLUMNS = 19.0, 3
NAME_LENGTH = 38
"""Characters of a name that leave room for the figure on the other side."""


@dataclass(frozen=True)
class Bar:
    """A row. `bounds`: the interval of its value, a thin line."""

    name: str
    told: str
    value: float
    bounds: tuple[float, float] | None = None
    strong: bool = False


@dataclass(frozen=True)
class Span:
    """A piece of a row. `colour`: the place of its name. `filled`: its height, as a fraction."""

    begin: float
    end: float
    colour: int
    filled: float = 1.0


def bar_chart(title: str, bars: Sequence[Bar], mark: float | None = None) -> str:
    """The bars on one scale that begins at 0; `mark`: a line through all of them.

    A value that is not finite has no bar.
    """
    drawable = [bar for bar in bars if all(map(math.isfinite, (bar.value, *(bar.bounds or ()))))]
    reach = [x for bar in drawable for x in (bar.value, *(bar.bounds or ()))]
    scale = WIDTH / (max([*reach, mark or 0.0]) or 1.0)
    drawn, y = [text(title, 0, 15, "h")], TITLE
    for bar in bars:
        drawn += _words(bar, y)
        if bar in drawable:
            drawn += _bar(bar, y + WORDS, scale)
            drawn += [] if mark is None else [_mark(min(mark * scale, WIDTH - 1), y + WORDS)]
        y += ROW if bar in drawable else WORDS
    return svg_picture(title, y, drawn)


def _words(bar: Bar, y: float) -> list[str]:
    kind = "b" if bar.strong else "t"
    name = one_line(bar.name, NAME_LENGTH)
    return [text(name, 0, y + 16, kind), text(bar.told, WIDTH, y + 16, kind, "end")]


def _bar(bar: Bar, y: float, scale: float) -> list[str]:
    drawn = [_rectangle(0, y, bar.value * scale, "f1" if bar.strong else "f0")]
    if bar.bounds is not None:
        (low, high), middle = bar.bounds, y + BAR / 2
        line = element("line", x1=low * scale, x2=high * scale, y1=middle, y2=middle, class_="w")
        drawn.append(line)
    return drawn


def _mark(x: float, y: float) -> str:
    return element("line", x1=x, x2=x, y1=y - 3, y2=y + BAR + 3, class_="m")


def stacked_bars(
    title: str, rows: Sequence[tuple[str, str, Sequence[float]]], names: Sequence[str]
) -> str:
    """Rows of (name, figure, parts), parts in the order of `names`; all rows on one scale.

    A part that no row has is left out, and leaves the colours of the others as they are.
    """
    spans = [
        (
            name,
            told,
            [Span(*ends, i) for i, ends in enumerate(pairwise(accumulate(parts, initial=0)))],
        )
        for name, told, parts in rows
    ]
    return span_chart(title, spans, names, max(sum(parts) for _, _, parts in rows))


def span_chart(
    title: str, rows: Sequence[tuple[str, str, Sequence[Span]]], names: Sequence[str], width: float
) -> str:
    """Rows of (name, figure, spans) on one scale up to `width`, below them the names of colours."""
    scale = WIDTH / (width or 1.0)
    drawn = [text(title, 0, 15, "h")]
    for number, (name, told, spans) in enumerate(rows):
        y = TITLE + ROW * number
        drawn += [
            text(one_line(name, NAME_LENGTH), 0, y + 16),
            text(told, WIDTH, y + 16, "t", "end"),
        ]
        for span in spans:
            length, height = (span.end - span.begin) * scale, BAR * span.filled
            if length:
                top = y + WORDS + BAR - height
                drawn.append(_rectangle(span.begin * scale, top, length, f"f{span.colour}", height))
    below = TITLE + ROW * len(rows) + 6
    seen = {span.colour for _, _, spans in rows for span in spans if span.end > span.begin}
    used = sorted(seen & set(range(len(names))))
    drawn += [_legend_entry(names[i], i, place, below) for place, i in enumerate(used)]
    legend_rows = -(-len(used) // LEGEND_COLUMNS)
    return svg_picture(title, below + LEGEND_ROW * legend_rows, drawn)


def _legend_entry(name: str, index: int, place: int, y: float) -> str:
    row, column = divmod(place, LEGEND_COLUMNS)
    x, y = column * WIDTH / LEGEND_COLUMNS, y + row * LEGEND_ROW
    swatch = element("rect", x=x, y=y + 2, width=12, height=12, class_=f"f{index}")
    return swatch + text(name, x + 18, y + 13)


def _rectangle(x: float, y: float, width: float, colour: str, height: float = BAR) -> str:
    return element("rect", x=x, y=y, width=max(width, 0.5), height=height, class_=colour)
