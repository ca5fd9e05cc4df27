"""A page as Markdown: the same words and tables, and for each picture the sentence beside it."""

from __future__ import annotations

from gpurun.report.markdown_text import bullets, code_span, escaped, escaped_line, table
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
