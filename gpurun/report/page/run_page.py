"""The page of one run, or of several side by side."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from gpurun.arguments.gpurun_toml import ReportConfig
from gpurun.formatting.number_text import byte_size, count, factor, number, percent
from gpurun.formatting.one_line import one_line
from gpurun.records.bench.comparison import Comparison
from gpurun.records.bench.history import History, Trend
from gpurun.records.result import RunResult
from gpurun.records.scaling import ScalingReport
from gpurun.report.comparison_text import (
    figures_grid,
    gated_grid,
    method_lines,
    training_line,
)
from gpurun.report.history_text import conditions, history_grid, history_lines, title
from gpurun.report.page.charts import Line, LineChart
from gpurun.report.page.cost_section import cost_section, training_cost
from gpurun.report.page.findings_section import findings_sections
from gpurun.report.page.headline_section import figure_grid, headline_section
from gpurun.report.page.launch_sections import gauges_section, loss_section, step_section
from gpurun.report.page.page_blocks import (
    Block,
    Bullets,
    Page,
    PagePart,
    Paragraph,
    Picture,
    Pictures,
    Section,
    Table,
)
from gpurun.report.page.profile_sections import picture_section, profile_sections
from gpurun.report.page.recorded_series import GIB
from gpurun.report.page.run_contents import Named, RunContents, names_of
from gpurun.report.page.tuning_sections import trials_section, tuning_sections
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


TITLE_LENGTH = 80
OF_DIFFERENT_SCRIPTS = "The runs are of different scripts, so their speeds are not compared."


def run_page(runs: Sequence[RunContents], config: ReportConfig) -> Page:
    """The page; of several runs the comparison comes first."""
    parts = [_part(run, config) for run in runs]
    if len(runs) == 1:
        words = shlex.join(runs[0].command) or runs[0].name
        return Page(f"gpurun: {one_line(words, TITLE_LENGTH)}", tuple(parts))
    return Page(f"gpurun: {len(runs)} runs side by side", (_side_by_side(runs), *parts))


def _part(run: RunContents, config: ReportConfig) -> PagePart:
    """Every section that the run has data for."""
    launches: list[Named] = [(r.label, r) for r in run.recordings]
    named: list[Named] = [(name or "the run", recording) for name, recording in launches]
    sections: list[Section | None] = [headline_section(run, training_cost(run, config))]
    sections += tuning_sections(run)
    sections.append(step_section(named))
    if run.scaling is not None:
        sections.append(scaling_section(run.scaling))
    if run.comparison is not None:
        sections += comparison_sections(run.comparison)
    if run.history is not None:
        sections.append(history_section(run.history))
    sections += findings_sections(run)
    if run.diagnosis is not None:
        sections += profile_sections(run.diagnosis)
    sections += [gauges_section(launches), loss_section(launches)]
    sections += [cost_section(run, config), trials_section(run)]
    kept = tuple(section for section in sections if section is not None and section.blocks)
    of = f" ({one_line(run.script, TITLE_LENGTH)})" if run.script else ""
    return PagePart(f"Run {run.name}{of}", kept, run.missing)


def _side_by_side(runs: Sequence[RunContents]) -> PagePart:
    """Figures, step parts and loss curves of all runs together."""
    named: list[Named] = [
        (f"{name} {recording.label}".strip(), recording)
        for name, run in zip(names_of(runs), runs, strict=True)
        for recording in run.recordings
    ]
    steps = [
        (name, run.diagnosis.step_picture)
        for name, run in zip(names_of(runs), runs, strict=True)
        if run.diagnosis is not None
    ]
    launches = [(name, r.result) for name, r in named if r.result is not None]
    blocks: list[Block] = []
    if launches:
        scripts = {run.script for run in runs} - {None}
        told = _faster(launches) if len(scripts) < 2 else [Paragraph(OF_DIFFERENT_SCRIPTS)]
        trials = any(run.tuning is not None for run in runs)
        blocks = [*told, Table(figure_grid(launches, trials=trials))]
    sections = [
        Section("Figures", tuple(blocks)) if blocks else None,
        step_section(named),
        *picture_section(steps),
        loss_section(named),
    ]
    return PagePart("Side by side", tuple(section for section in sections if section is not None))


def _faster(launches: Sequence[tuple[str, RunResult]]) -> list[Block]:
    """The last launch against the first, with what that is worth."""
    (first, before), (last, after) = launches[0], launches[-1]
    if not before.samples_per_second or not after.samples_per_second or len(launches) < 2:
        return []
    ratio = factor(after.samples_per_second / before.samples_per_second)
    said = f"{last} has {ratio} the throughput of {first}."
    apart = (
        "The runs were launched apart, so this factor has no interval. "
        "A difference is proven by gpurun bench --compare and by gpurun --optimize."
    )
    return [Paragraph(said, strong=True), Paragraph(apart)]


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
