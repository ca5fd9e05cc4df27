"""Records of benchmarks over time: a picture a trend, the table, the changes of level."""

from __future__ import annotations

from gpurun.formatting.number_text import byte_size, count, number
from gpurun.records.bench.history import History, Trend
from gpurun.report.history_text import conditions, history_grid, history_lines, title
from gpurun.report.page.line_chart import Line, line_chart
from gpurun.report.page.page_blocks import (
    Block,
    Bullets,
    Paragraph,
    Picture,
    Pictures,
    Section,
    Table,
)
from gpurun.report.page.recorded_series import GIB

MOST_PICTURES = 12


def history_section(history: History) -> Section:
    """The trends, the most recently measured first."""
    shown = list(zip(history.trends, conditions(history.trends), strict=True))[:MOST_PICTURES]
    blocks: list[Block] = [Paragraph(title(history), strong=True)]
    if shown:
        blocks.append(Pictures(tuple(_picture(trend, label) for trend, label in shown)))
        grid = history_grid(history)
        pictured = [column.heading != "trend" for column in grid.columns]
        blocks.append(Table(grid.select(pictured)))
    if len(history.trends) > len(shown):
        more = count(len(history.trends) - len(shown), "more trend")
        blocks.append(Paragraph(f"{more} in the table, without a picture."))
    return Section("History", (*blocks, Bullets(tuple(history_lines(history)))))


def _picture(trend: Trend, label: str) -> Picture:
    scale, unit = (1 / GIB, "GiB") if trend.unit == "bytes" else (1.0, trend.unit)
    points = [(float(n), point.value * scale) for n, point in enumerate(trend.points, 1)]
    levels = [
        (float(x), level.value * scale)
        for level in trend.levels
        for x in (level.start + 1, level.stop)
    ]
    lines = [Line("records", points, dots=True)]
    if levels:
        lines.append(Line("level", levels, dashed=True))
    svg = line_chart(f"{trend.benchmark}, {unit}", lines, "record", from_zero=False)
    values = [point.value for point in trend.points]
    show = byte_size if trend.unit == "bytes" else number
    span = f"newest {show(values[-1])}, from {show(min(values))} to {show(max(values))}"
    records = count(len(values), "record")
    return Picture(svg, f"{trend.benchmark} ({label}): {records}, {unit}: {span}.")
