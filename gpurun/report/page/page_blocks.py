"""The parts of a page before they become HTML or Markdown. All texts are plain and unescaped."""

from __future__ import annotations

from dataclasses import dataclass

from gpurun.report.page.charts import Chart
from gpurun.report.terminal_table import Grid


@dataclass(frozen=True)
class Paragraph:
    """A sentence or some. `strong`: the one that matters most."""

    text: str
    strong: bool = False


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Code:
    """A command or a line of code, after a few words that introduce it."""

    introduction: str
    text: str


@dataclass(frozen=True)
class Table:
    """A grid; rows of the style "dim" step back, rows of the style "bold" stand out."""

    grid: Grid


@dataclass(frozen=True)
class Picture:
    """A chart. `sentence` says in words what it shows, for those who do not see it."""

    chart: Chart
    sentence: str


@dataclass(frozen=True)
class Pictures:
    """Pictures that stand beside each other where there is room."""

    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Card:
    """A finding. `level`: "critical", "warning" or "note". `code`: the user's line, or ""."""

    title: str
    level: str
    lines: tuple[str, ...]
    code: str = ""


Block = Paragraph | Bullets | Code | Table | Picture | Pictures | Card


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class PagePart:
    """All sections of one run, or those that compare runs."""

    title: str
    sections: tuple[Section, ...]
    missing: tuple[str, ...] = ()
    """What could not be read, a line each."""


@dataclass(frozen=True)
class Page:
    """The whole page."""

    title: str
    parts: tuple[PagePart, ...]
