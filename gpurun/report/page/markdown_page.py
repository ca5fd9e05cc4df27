"""A page as Markdown: the same words and tables, and for each picture the sentence beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
from gpurun.report.terminal_table import Grid

SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&!$])")
"""Characters that could begin markup anywhere in a line."""
LINKED = re.compile(
    r"(?<=@)(?=\w)|(?<=#)(?=\d)|(?<=:)(?=//)|(?i:(?<=\bgh)(?=-\d)|(?<=\b[0-9a-f])(?=[0-9a-f]{39}\b)"
    r"|(?<=www)(?=\.)|(?<=mailto)(?=:)|(?<=xmpp)(?=:))"
)
"""Places inside of what would become a mention, a reference or a link."""
BEGINS = re.compile(r"^([-+=]|\d+[.)](?=\s|$))")
"""What could begin a list or a heading at the beginning of a line."""


def escaped(words: str) -> str:
    """Foreign text inside a line."""
    return SPECIAL.sub(r"\\\1", LINKED.sub("\N{ZERO WIDTH SPACE}", one_line(words)))


def escaped_line(words: str) -> str:
    """Foreign text that begins a line."""
    return BEGINS.sub(lambda found: f"{found[1][:-1]}\\{found[1][-1]}", escaped(words))


def code_span(words: str) -> str:
    """A code span whose fence is longer than any run of backticks inside."""
    inside = one_line(words)
    fence = "`" * (max(map(len, re.findall("`+", inside)), default=0) + 1)
    pad = " " if inside.startswith("`") or inside.endswith("`") else ""
    return f"{fence}{pad}{inside}{pad}{fence}"


def bullets(items: Sequence[str]) -> str:
    """A list of foreign texts."""
    return "\n".join(f"* {escaped_line(item)}" for item in items)


def table(grid: Grid) -> str:
    """A grid as a Markdown table."""
    heading = [escaped(column.heading) for column in grid.columns]
    rule = ["--:" if column.right else ":--" for column in grid.columns]
    cells = [heading, rule, *([escaped(cell) for cell in row] for row in grid.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def markdown_page(page: Page) -> str:
    """The whole document."""
    several = len(page.parts) > 1
    parts = [f"# {escaped(page.title)}"]
    for part in page.parts:
        parts += _part(part, several)
    return "\n\n".join(part for part in parts if part) + "\n"


def _part(part: PagePart, several: bool) -> list[str]:
    level = "###" if several else "##"
    told = [f"## {escaped(part.title)}"] if several else []
    for section in part.sections:
        told += _section(section, level)
    return told + [f"Missing: {escaped(line)}" for line in part.missing]


def _section(section: Section, level: str) -> list[str]:
    heading = [f"{level} {escaped(section.title)}"] if section.title else []
    return heading + [_block(block) for block in section.blocks]


def _block(block: Block) -> str:
    if isinstance(block, Paragraph):
        return f"**{escaped(block.text)}**" if block.strong else escaped_line(block.text)
    if isinstance(block, Bullets):
        return bullets(block.items)
    if isinstance(block, Code):
        return f"{escaped_line(block.introduction)} {code_span(block.text)}"
    if isinstance(block, Table):
        return table(block.grid)
    if isinstance(block, Picture):
        return escaped_line(block.sentence)
    if isinstance(block, Pictures):
        return bullets([picture.sentence for picture in block.pictures])
    return _card(block)


def _card(card: Card) -> str:
    code = [f"* {code_span(card.code)}"] if card.code else []
    lines = [f"* {escaped_line(line)}" for line in card.lines]
    return "\n".join([f"**{escaped(card.level)}: {escaped(card.title)}**", "", *code, *lines])
