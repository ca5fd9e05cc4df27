"""What pictures show, before it is drawn: as SVG in the page, by matplotlib in a PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

Point = tuple[float, float]


@dataclass(frozen=True)
class Bar:
    """A row. `bounds`: the interval of its value, a thin line."""

    name: str
    told: str
    value: float
    bounds: tuple[float, float] | None = None
    strong: bool = False

    @property
    def drawable(self) -> bool:
        """False where a value is not finite: only its words are shown."""
        return all(map(math.isfinite, (self.value, *(self.bounds or ()))))


@dataclass(frozen=True)
class BarChart:
    """Bars on one scale that begins at 0. `mark`: a line through all of them."""

    title: str
    bars: Sequence[Bar]
    mark: float | None = None


@dataclass(frozen=True)
class Span:
    """A piece of a row, in milliseconds. `colour`: the place of its name. `filled`: its height, as
    a fraction."""

    begin: float
    end: float
    colour: int
    filled: float = 1.0


@dataclass(frozen=True)
class SpanChart:
    """Rows of (name, figure, spans) on one scale up to `width`. `names`: what colours mean."""

    title: str
    rows: Sequence[tuple[str, str, Sequence[Span]]]
    names: Sequence[str]
    width: float

    @property
    def colours_used(self) -> list[int]:
        """Places of the names that some span has."""
        seen = {span.colour for _, _, spans in self.rows for span in spans if span.end > span.begin}
        return sorted(seen & set(range(len(self.names))))


def stacked_chart(
    title: str, rows: Sequence[tuple[str, str, Sequence[float]]], names: Sequence[str]
) -> SpanChart:
    """Rows of (name, figure, parts), parts in the order of `names` and one after the other."""
    spans = [
        (
            name,
            told,
            [Span(*ends, i) for i, ends in enumerate(pairwise(accumulate(parts, initial=0)))],
        )
        for name, told, parts in rows
    ]
    return SpanChart(title, spans, names, max(sum(parts) for _, _, parts in rows))


@dataclass(frozen=True)
class Line:
    """A named series. `dashed`: no measurement; `dots`: each point is marked."""

    name: str
    points: Sequence[Point]
    dashed: bool = False
    dots: bool = False


@dataclass(frozen=True)
class LineChart:
    """Lines over time, over steps or over devices.

    `from_zero`: the vertical axis includes 0. `x_from`: where the horizontal axis begins at the
    latest. `y_to`: where the vertical one ends at the earliest. `remark`: what a picture without a
    sentence beside it says behind its title.
    """

    title: str
    lines: Sequence[Line]
    x_name: str
    from_zero: bool = True
    x_ticks: Sequence[float] = ()
    x_from: float | None = None
    y_to: float | None = None
    remark: str = ""

    @property
    def finite_lines(self) -> list[Line]:
        """The lines without points that are not finite, as far as they have others."""
        finite = (
            replace(line, points=[p for p in line.points if all(map(math.isfinite, p))])
            for line in self.lines
        )
        return [line for line in finite if line.points]


Chart = BarChart | SpanChart | LineChart
