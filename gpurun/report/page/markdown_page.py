"""A page as Markdown: the same words and tables, and for each picture the sentence beside it."""

from __future__ import annotations

import re

from gpurun.formatting.one_line import one_line
from gpurun.report.page.page_blocks import (
    Block,
    Bullets,
    Card,
    Code,
    Page,
    Paragraph,
    Part,
    Picture,
    Pictures,
    Section,
    Table,
)
from gpurun.report.terminal_table import Grid

SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&!$])")
"""Characters that could begin markup anywhere in a line."""
BEGINS = re.compile(r"^([-+=]|\d+[.)](?=\s|$))")
"""What could begin a list or a heading at the beginning of a line."""


def markdown_page(page: Page) -> str:
    """The whole document."""
    several = len(page.parts) > 1
    parts = [f"# {_text(page.title)}"]
    for part in page.parts:
        parts += _part(part, several)
    return "\n\n".join(part for part in parts if part) + "\n"


def _part(part: Part, several: bool) -> list[str]:
    level = "###" if several else "##"
    told = [f"## {_text(part.title)}"] if several else []
    for section in part.sections:
        told += _section(section, level)
    return told + [f"Missing: {_text(line)}" for line in part.missing]


def _section(section: Section, level: str) -> list[str]:
    heading = [f"{level} {_text(section.title)}"] if section.title else []
    return heading + [_block(block) for block in section.blocks]


def _block(block: Block) -> str:
    if isinstance(block, Paragraph):
        return f"**{_text(block.text)}**" if block.strong else _line(block.text)
    if isinstance(block, Bullets):
        return _bullets(block.items)
    if isinstance(block, Code):
        return f"{_line(block.introduction)} {_code(block.text)}"
    if isinstance(block, Table):
        return _table(block.grid)
    if isinstance(block, Picture):
        return _line(block.sentence)
    if isinstance(block, Pictures):
        return _bullets([picture.sentence for picture in block.pictures])
    return _card(block)


def _card(card: Card) -> str:
    code = [f"* {_code(card.code)}"] if card.code else []
    lines = [f"* {_line(line)}" for line in card.lines]
    return "\n".join([f"**{_text(card.level)}: {_text(card.title)}**", "", *code, *lines])


def _bullets(items: tuple[str, ...] | list[str]) -> str:
    return "\n".join(f"* {_line(item)}" for item in items)


def _table(grid: Grid) -> str:
    heading = [_text(column.heading) for column in grid.columns]
    rule = ["--:" if column.right else ":--" for column in grid.columns]
    cells = [heading, rule, *([_text(cell) for cell in row] for row in grid.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _text(words: str) -> str:
    """Foreign text inside a line."""
    return SPECIAL.sub(r"\\\1", one_line(words))


def _line(words: str) -> str:
    """Foreign text that begins a line."""
    return BEGINS.sub(lambda found: f"{found[1][:-1]}\\{found[1][-1]}", _text(words))


def _code(words: str) -> str:
    """A code span whose fence is longer than any run of backticks inside."""
    inside = one_line(words)
    fence = "`" * (max(map(len, re.findall("`+", inside)), default=0) + 1)
    pad = " " if inside.startswith("`") or inside.endswith("`") else ""
    return f"{fence}{pad}{inside}{pad}{fence}"
