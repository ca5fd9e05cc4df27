"""The scaling curve with its table and findings."""

from __future__ import annotations

from gpurun.formatting.number_text import count, factor, percent
from gpurun.records.scaling import ScalingReport
from gpurun.report.page.line_chart import Line, line_chart
from gpurun.report.page.page_blocks import Block, Bullets, Picture, Section, Table
from gpurun.report.scaling_text import grid, scaling_lines

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
    svg = line_chart("Speedup by devices", lines, "devices", x_ticks=sorted(set(marks)))
    efficiency = [
        f"{count(p.gpus, 'device')}: {factor(p.speedup)}, efficiency {percent(p.efficiency)}"
        for p in report.points
        if p.speedup is not None and p.efficiency is not None
    ]
    return Picture(svg, f"{'; '.join(efficiency)}.")
