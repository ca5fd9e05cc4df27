"""A page on the terminal: the same words and tables, without its pictures."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.report.page.page_blocks import (
    Block,
    Bullets,
    Card,
    Code,
    Page,
    Paragraph,
    Picture,
    Pictures,
    Section,
    Table,
)
from gpurun.report.terminal_output import PREFIX, VERBATIM, Line, write_lines
from gpurun.report.terminal_table import print_grid


def print_page(page: Page) -> None:
    """Write all of it to stderr."""
    write_lines([[(page.title, "bold")]])
    for part in page.parts:
        print_sections(part.sections)
        _write([[(f"missing: {line}", "")] for line in part.missing])


def print_sections(sections: Sequence[Section]) -> None:
    """Write some sections to stderr."""
    for section in sections:
        if section.title:
            _write([[(section.title, "bold")]])
        for block in section.blocks:
            _print(block)


def _print(block: Block) -> None:
    if isinstance(block, Table):
        print_grid("", block.grid)
    elif isinstance(block, Paragraph):
        _write([[(block.text, "bold" if block.strong else "")]])
    elif isinstance(block, Bullets):
        _write([[(item, "")] for item in block.items])
    elif isinstance(block, Code):
        _write([[(f"{block.introduction} ", ""), (block.text, VERBATIM)]])
    elif isinstance(block, Card):
        code: list[Line] = [[(block.code, VERBATIM)]] if block.code else []
        _write([[(block.title, "bold")], *code, *([(line, "")] for line in block.lines)])
    elif isinstance(block, Pictures):
        _write([[(each.sentence, "")] for each in block.pictures])
    elif isinstance(block, Picture):
        _write([[(block.sentence, "")]])


def _write(lines: list[Line]) -> None:
    write_lines([[(PREFIX, "bold cyan"), *line] for line in lines])
