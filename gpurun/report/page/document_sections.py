"""Sections of what `--scale` and `bench history` measured: a picture, a table, lines."""

from __future__ import annotations

from gpurun.formatting.number_text import byte_size, count, factor, number, percent
from gpurun.records.bench.history import History, Trend
from gpurun.records.scaling import ScalingReport
from gpurun.report.history_text import conditions, history_grid, history_lines, title
from gpurun.report.page.charts import Line, LineChart
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
from gpurun.report.scaling_text import grid, scaling_lines

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
    chart = LineChart(f"{trend.benchmark}, {unit}", lines, "record", from_zero=False)
    values = [point.value for point in trend.points]
    show = byte_size if trend.unit == "bytes" else number
    span = f"newest {show(values[-1])}, from {show(min(values))} to {show(max(values))}"
    records = count(len(values), "record")
    return Picture(chart, f"{trend.benchmark} ({label}): {records}, {unit}: {span}.")


AHEAD = 4
"""The projection is drawn up to so many times the largest count that was measured."""


def scaling_section(report: ScalingReport) -> Section:
    """Picture, table, findings and notes."""
    blocks: list[Block] = []
    picture = scaling_picture(report)
    if picture is not None:
        blocks.append(picture)
    if report.points:
        blocks.append(Table(grid(report)))
    blocks.append(Bullets(tuple(line.strip() for line in scaling_lines(report))))
    errors = [f"{p.gpus}: {p.error}" for p in report.points if p.error is not None]
    if errors:
        blocks.append(Bullets(tuple(errors)))
    return Section("Scaling", tuple(blocks))


def scaling_picture(report: ScalingReport) -> Picture | None:
    """Speedup by devices beside the ideal; None without two measured counts."""
    points = [(float(p.gpus), p.speedup) for p in report.points if p.speedup is not None]
    if len(points) < 2:
        return None
    first, last = points[0][0], points[-1][0]
    ideal = [(gpus, gpus / first) for gpus, _ in points]
    lines = [Line("measured", points, dots=True)]
    if report.projection is not None:
        ahead = [
            (float(p.gpus), p.speedup)
            for p in report.projection.points
            if last < p.gpus <= AHEAD * last
        ]
        if ahead:
            lines.append(Line("projected, not measured", [points[-1], *ahead], dashed=True))
            ideal.append((ahead[-1][0], ahead[-1][0] / first))
    lines.append(Line("linear", ideal, dashed=True))
    marks = [gpus for gpus, _ in points] + [line.points[-1][0] for line in lines[1:2]]
    chart = LineChart("Speedup by devices", lines, "devices", x_ticks=sorted(set(marks)))
    efficiency = [
        f"{count(p.gpus, 'device')}: {factor(p.speedup)}, efficiency {percent(p.efficiency)}"
        for p in report.points
        if p.speedup is not None and p.efficiency is not None
    ]
    return Picture(chart, f"{'; '.join(efficiency)}.")
