"""The page of one run, or of several side by side."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from gpurun.arguments.gpurun_toml import ReportConfig
from gpurun.formatting.number_text import factor
from gpurun.formatting.one_line import one_line
from gpurun.records.bench.comparison import Comparison
from gpurun.records.result import RunResult
from gpurun.report.comparison_text import (
    figures_grid,
    gated_grid,
    method_lines,
    training_line,
)
from gpurun.report.page.cost_section import cost_section, training_cost
from gpurun.report.page.document_sections import history_section, scaling_section
from gpurun.report.page.findings_section import findings_sections
from gpurun.report.page.headline_section import figure_grid, headline_section
from gpurun.report.page.launch_sections import gauges_section, loss_section, step_section
from gpurun.report.page.page_blocks import Block, Bullets, Page, PagePart, Paragraph, Section, Table
from gpurun.report.page.profile_sections import picture_section, profile_sections
from gpurun.report.page.run_contents import Named, RunContents, names_of
from gpurun.report.page.tuning_sections import trials_section, tuning_sections

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
