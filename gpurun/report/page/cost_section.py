"""Time, energy and money of a run; money only with a price in gpurun.toml."""

from __future__ import annotations

from gpurun.arguments.gpurun_toml import ReportConfig
from gpurun.report.page.page_blocks import Block, Paragraph, Section, Table
from gpurun.report.page.run_contents import Recording, RunContents
from gpurun.report.page.run_cost import (
    SAMPLES,
    Pace,
    basis_sentence,
    cost_grid,
    cost_of,
    cost_sentence,
)


def cost_section(contents: RunContents, config: ReportConfig) -> Section | None:
    """None where no speed was measured, or neither price nor energy is known."""
    sides = [r for r in contents.recordings if r.label] or list(contents.recordings[-1:])
    paces = [pace for recording in sides if (pace := _pace(recording)) is not None]
    priced = config.price_per_hour is not None
    if not paces or not (priced or any(pace.joules_per_sample for pace in paces)):
        return None
    work = next((r.work for r in sides if r.work is not None), None)
    samples = SAMPLES if work is None else work.samples
    costs = [cost_of(pace, samples, config) for pace in paces]
    blocks: list[Block] = [
        Paragraph(cost_sentence(costs, work, paces[0].devices, config), strong=True),
        Table(cost_grid(costs, config)),
        Paragraph(basis_sentence(work)),
    ]
    energy = ["energy"] if any(cost.joules is not None for cost in costs) else []
    words = ["time", *energy, *(["cost"] if priced else [])]
    title = f"{', '.join(words[:-1])} and {words[-1]}".capitalize()
    return Section(title, tuple(blocks))


def _pace(recording: Recording) -> Pace | None:
    result = recording.result
    if result is None or not result.samples_per_second:
        return None
    return Pace(
        recording.label or "the run",
        result.samples_per_second,
        result.joules_per_sample,
        max(len(result.devices), 1),
    )
