"""A page as one HTML document that needs neither the network nor JavaScript."""

from __future__ import annotations

from html import escape

from gpurun.formatting.one_line import one_line
from gpurun.report.page.page_blocks import (
    Block,
    Bullets,
    Card,
    Code,
    Page,
    PagePart,
    Paragraph,
    Picture,
    Pictures,
    Section,
    Table,
)
from gpurun.report.page.page_style import STYLE
from gpurun.report.terminal_table import Column, Grid

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Even if foreign text came through, nothing would run and nothing would be loaded."""
WIDE = 4
"""Tables of so many columns become lists on a phone."""
LONG_FIGURE = 20
"""A figure with more characters may be broken into lines."""


def html_page(page: Page) -> str:
    """The whole document."""
    several = len(page.parts) > 1
    body = "\n".join(_part(part, several) for part in page.parts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>{_text(page.title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{_text(page.title)}</h1>
{body}
</main>
</body>
</html>
"""


def _part(part: PagePart, several: bool) -> str:
    heading = f"<h2>{_text(part.title)}</h2>" if several else ""
    level = 3 if several else 2
    sections = "\n".join(_section(section, level) for section in part.sections)
    missing = "".join(f'<p class="soft">Missing: {_text(line)}</p>' for line in part.missing)
    return f"{heading}\n{sections}\n{missing}"


def _section(section: Section, level: int) -> str:
    heading = f"<h{level}>{_text(section.title)}</h{level}>" if section.title else ""
    blocks = "\n".join(map(_block, section.blocks))
    return f"<section>\n{heading}\n{blocks}\n</section>"


def _block(block: Block) -> str:
    if isinstance(block, Paragraph):
        kind = ' class="lead"' if block.strong else ""
        return f"<p{kind}>{_text(block.text)}</p>"
    if isinstance(block, Bullets):
        return f"<ul>{''.join(f'<li>{_text(item)}</li>' for item in block.items)}</ul>"
    if isinstance(block, Code):
        return f"<p>{_text(block.introduction)}</p><pre>{_text(block.text)}</pre>"
    if isinstance(block, Table):
        return _table(block.grid)
    if isinstance(block, Picture):
        return _figure(block)
    if isinstance(block, Pictures):
        return f'<div class="pictures">{"".join(map(_figure, block.pictures))}</div>'
    return _card(block)


def _figure(picture: Picture) -> str:
    caption = f"<figcaption>{_text(picture.sentence)}</figcaption>"
    return f"<figure>{picture.svg}{caption}</figure>"


def _card(card: Card) -> str:
    lines = "".join(f"<p>{_text(line)}</p>" for line in card.lines)
    code = f"<pre>{_text(card.code)}</pre>" if card.code else ""
    level = f'<span class="level">{_text(card.level)}</span>'
    title = f"<p>{level}<br><strong>{_text(card.title)}</strong></p>"
    return f'<div class="card {_text(card.level)}">{title}{code}{lines}</div>'


def _table(grid: Grid) -> str:
    wide = ' class="wide"' if len(grid.columns) >= WIDE else ""
    heading = "".join(
        f'<th scope="col"{_side(column)}>{_text(column.heading)}</th>' for column in grid.columns
    )
    styles = grid.styles or ("",) * len(grid.rows)
    rows = "\n".join(_row(grid, row, style) for row, style in zip(grid.rows, styles, strict=True))
    return f"<table{wide}><thead><tr>{heading}</tr></thead><tbody>\n{rows}\n</tbody></table>"


def _row(grid: Grid, row: tuple[str, ...], style: str) -> str:
    kind = f' class="{style}"' if style in ("dim", "bold") else ""
    cells = "".join(
        f"<td{_side(column, cell)}{_name(column, i)}>{_cell(cell)}</td>"
        for i, (column, cell) in enumerate(zip(grid.columns, row, strict=True))
    )
    return f"<tr{kind}>{cells}</tr>"


def _cell(words: str) -> str:
    """A long name is broken behind an underscore rather than anywhere."""
    return _text(words).replace("_", "_<wbr>")


def _side(column: Column, cell: str = "") -> str:
    """Figures stand on the right, unbroken unless they are long."""
    long = " t" if len(cell) > LONG_FIGURE else ""
    return f' class="r{long}"' if column.right else ""


def _name(column: Column, index: int) -> str:
    """The heading again, which a phone shows before the cell."""
    return f' data-name="{_text(column.heading)}"' if index and column.heading else ""


def _text(words: str) -> str:
    kept = one_line(words).replace(" %", "\N{NO-BREAK SPACE}%").replace("< ", "<\N{NO-BREAK SPACE}")
    return escape(kept, quote=True)
