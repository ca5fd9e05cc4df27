"""The comparison of two commits or two settings."""

from __future__ import annotations

from gpurun.records.bench.comparison import Comparison
from gpurun.report.comparison_text import (
    figures_grid,
    gated_grid,
    method_lines,
    training_line,
)
from gpurun.report.page.page_blocks import Block, Bullets, Paragraph, Section, Table


def comparison_sections(comparison: Comparison) -> list[Section]:
    """A section for each benchmark, the worst first."""
    return [_section(found) for found in (comparison, *comparison.others)]


def _section(found: Comparison) -> Section:
    grids = (gated_grid(found), figures_grid(found))
    blocks: list[Block] = [Table(grid) for grid in grids if grid.rows]
    if found.verdict != "pass" and found.recommendation:
        blocks.append(Paragraph(found.recommendation))
    training = training_line(found)
    told = [*method_lines(found), *([training] if training else []), *found.notes]
    if told:
        blocks.append(Bullets(tuple(told)))
    return Section(f"Comparison: {found.benchmark}", tuple(blocks))
