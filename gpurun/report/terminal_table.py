"""Tables on stderr, drawn by rich on a terminal, else aligned; curves as small charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING

from gpurun.errors import visible
from gpurun.report.terminal_output import (
    gone_terminal_ignored,
    on_terminal,
    stderr_console,
    write_plain,
)

if TYPE_CHECKING:
    from rich.table import Table


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


_GAP = 2
_LAST_COLUMN_MINIMUM = 16
_LAST_COLUMN_LEAST = 10


@dataclass(frozen=True)
class Column:
    """A column. `right`: its cells are numbers. `dropped`: rank in which it leaves a narrow
    terminal (1 leaves first); None stays always. `width`: its least number of characters, so that a
    growing table does not jump."""

    heading: str
    right: bool = False
    dropped: int | None = None
    width: int = 0


@dataclass(frozen=True)
class Grid:
    """Columns and rows of text. `styles` holds one rich style a row ("" for none), or is empty."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    styles: tuple[str, ...] = ()

    def select(self, keep: Sequence[bool]) -> Grid:
        """The grid with only some of its columns."""
        columns = tuple(compress(self.columns, keep))
        return Grid(columns, tuple(tuple(compress(r, keep)) for r in self.rows), self.styles)

    def without_empty_columns(self) -> Grid:
        """The grid without columns in which nothing was measured."""
        return self.select([any(row[i] for row in self.rows) for i in range(len(self.columns))])

    def widths(self) -> list[int]:
        """Characters that each column needs."""
        return [
            max([len(column.heading), column.width, *(len(row[i]) for row in self.rows)])
            for i, column in enumerate(self.columns)
        ]

    def fitting(self, width: int) -> Grid:
        """The grid without the columns that a terminal of this width has no room for.

        The last column may wrap and counts with a minimum only.
        """
        grid = self
        while grid.width(_LAST_COLUMN_MINIMUM) > width:
            ranks = [c.dropped for c in grid.columns if c.dropped is not None]
            if not ranks:
                break
            grid = grid.select([c.dropped != min(ranks) for c in grid.columns])
        return grid

    def width(self, last_at_most: int | None = None) -> int:
        """Characters that a row needs; the last column can be counted with less than its own."""
        *others, last = self.widths()
        least = last if last_at_most is None else min(last, last_at_most)
        return sum(w + _GAP for w in others) + least

    def lines(self) -> list[str]:
        """The heading and the rows in aligned columns."""
        widths = self.widths()
        table = [tuple(c.heading for c in self.columns), *self.rows]
        return [self._line(row, widths) for row in table]

    def _line(self, row: tuple[str, ...], widths: Sequence[int]) -> str:
        cells = (
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, self.columns, strict=True)
        )
        return (" " * _GAP).join(cells).rstrip()


def rich_table(grid: Grid, room: int | None = None) -> Table:
    """The grid as rich draws it: no frame, a thin line below the heading.

    The box puts one blank between columns by itself, hence the padding of one less than the gap.
    Where `room` characters leave the last column enough, it alone is wrapped; else columns with a
    width of their own are held to that first. Without `room` a row is one line: text is cut, so
    that a table which is drawn again does not jump.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = replace(grid, rows=tuple(tuple(map(visible, row)) for row in grid.rows))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, _GAP - 1, 0, 0), show_edge=False)
    one_line = room is None
    widths = [None] * len(grid.columns) if room is None else _drawn_widths(grid, room)
    for column, width in zip(grid.columns, widths, strict=True):
        table.add_column(
            column.heading,
            justify="right" if column.right else "left",
            no_wrap=column.right,
            width=width,
            min_width=column.width if one_line else None,
            overflow="ellipsis" if one_line else "fold",
            header_style="bold",
        )
    styles = grid.styles or ("",) * len(grid.rows)
    for row, style in zip(grid.rows, styles, strict=True):
        table.add_row(*(Text(cell, no_wrap=one_line or None) for cell in row), style=style)
    return table


def _drawn_widths(grid: Grid, room: int) -> list[int] | list[None]:
    """Characters of each column within `room`; None each where only rich's own wrapping helps."""
    natural = grid.widths()
    reserved = [c.width or n for c, n in zip(grid.columns, natural, strict=True)]
    for others, least in (
        (natural[:-1], _LAST_COLUMN_MINIMUM),
        (reserved[:-1], _LAST_COLUMN_LEAST),
    ):
        left = room - sum(w + _GAP for w in others)
        if left >= min(natural[-1], least):
            return [*others, min(natural[-1], left)]
    return [None] * len(natural)


def print_grid(title: str, grid: Grid) -> None:
    """Write a table with its title (none if empty) to stderr."""
    if not on_terminal():
        write_plain([*([title] if title else []), *(f"  {line}" for line in grid.lines())])
        return
    from rich.padding import Padding
    from rich.text import Text

    console = stderr_console()
    with gone_terminal_ignored():
        if title:
            console.print(Text(title, style="bold"))
        room = console.width - _GAP
        table = rich_table(grid.fitting(room), room)
        console.print(Padding(table, (0, 0, 0, _GAP), expand=False))


def print_table(title: str, columns: Sequence[str | Column], rows: Sequence[Sequence[str]]) -> None:
    """Write a table of text cells to stderr; a cell of nothing measured is an empty string."""
    named = tuple(c if isinstance(c, Column) else Column(c) for c in columns)
    print_grid(title, Grid(named, tuple(tuple(row) for row in rows)))
