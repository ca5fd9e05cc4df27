"""Tables on stderr: drawn by rich on a terminal, aligned columns elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

from gpurun.report.terminal import on_terminal, stderr_console, write_plain

if TYPE_CHECKING:
    from rich.table import Table

_GAP = 2
_LAST_COLUMN_MINIMUM = 18


@dataclass(frozen=True)
class Column:
    """A column. `right`: its cells are numbers. `dropped`: rank in which it leaves a narrow
    terminal (1 leaves first); None stays always.
    """

    heading: str
    right: bool = False
    dropped: int | None = None


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
            max([len(column.heading), *(len(row[i]) for row in self.rows)])
            for i, column in enumerate(self.columns)
        ]

    def fitting(self, width: int) -> Grid:
        """The grid without the columns that a terminal of this width has no room for.

        The last column may wrap and counts with a minimum only.
        """
        grid = self
        while grid._least_width() > width:
            ranks = [c.dropped for c in grid.columns if c.dropped is not None]
            if not ranks:
                break
            grid = grid.select([c.dropped != min(ranks) for c in grid.columns])
        return grid

    def _least_width(self) -> int:
        *others, last = self.widths()
        return sum(w + _GAP for w in others) + min(last, _LAST_COLUMN_MINIMUM)

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


def rich_table(grid: Grid) -> Table:
    """The grid as rich draws it: no frame, a thin line below the heading."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, _GAP, 0, 0), show_edge=False)
    for column in grid.columns:
        table.add_column(
            column.heading,
            justify="right" if column.right else "left",
            no_wrap=column.right,
            overflow="fold",
            header_style="bold",
        )
    styles = grid.styles or ("",) * len(grid.rows)
    for row, style in zip(grid.rows, styles, strict=True):
        table.add_row(*(Text(cell) for cell in row), style=style)
    return table


def print_grid(title: str, grid: Grid) -> None:
    """Write a table with its title (none if empty) to stderr."""
    if not on_terminal():
        write_plain([*([title] if title else []), *(f"  {line}" for line in grid.lines())])
        return
    from rich.padding import Padding
    from rich.text import Text

    console = stderr_console()
    if title:
        console.print(Text(title, style="bold"))
    console.print(Padding(rich_table(grid.fitting(console.width - 2)), (0, 0, 0, 2), expand=False))


def print_table(title: str, columns: Sequence[str | Column], rows: Sequence[Sequence[str]]) -> None:
    """Write a table of text cells to stderr; a cell of nothing measured is an empty string."""
    named = tuple(c if isinstance(c, Column) else Column(c) for c in columns)
    print_grid(title, Grid(named, tuple(tuple(row) for row in rows)))
