"""The section of the parts of a step: where its time goes, by launch."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.formatting.number_text import milliseconds
from gpurun.records.result import StepSplit
from gpurun.report.page.bar_chart import stacked_bars
from gpurun.report.page.page_blocks import Block, Paragraph, Picture, Section, Table
from gpurun.report.page.run_contents import Named
from gpurun.report.terminal_table import Column, Grid

PARTS = (
    ("data_wait_ms", "waits for data"),
    ("host_to_device_copy_ms", "copies to the GPU"),
    ("forward_ms", "forward"),
    ("backward_ms", "backward"),
    ("optimizer_ms", "optimizer"),
    ("rest_ms", "rest"),
)
"""Field of `StepSplit`, and its name."""

ON_GPU = (
    "Parts are times of the host, except copies. Where the host waits for the GPU, the wait counts "
    "in the part in which it waits, mostly the rest."
)
ONE_LAUNCH = (
    "These are of the two launches that the summary names. Its mean step is over all launches."
)


def step_section(launches: Sequence[Named]) -> Section | None:
    """The parts of the mean step of each launch; None where no launch has parts."""
    rows = step_parts(launches)
    if not rows:
        return None
    bars = [(name, milliseconds(sum(parts)), parts) for name, parts in rows]
    picture = stacked_bars("Parts of the mean step", bars, [name for _, name in PARTS])
    sentence = "; ".join(f"{name}: {_largest(parts)}" for name, parts in rows)
    blocks: list[Block] = [Picture(picture, f"{sentence}."), Table(_parts_grid(_splits(launches)))]
    if any(recording.folder for _, recording in launches):
        blocks.append(Paragraph(ONE_LAUNCH))
    if any(recording.result and recording.result.devices for _, recording in launches):
        blocks.append(Paragraph(ON_GPU))
    return Section("Step", tuple(blocks))


def step_parts(launches: Sequence[Named]) -> list[tuple[str, list[float]]]:
    """The milliseconds of each of `PARTS`, by launch, where they were measured."""
    rows = [
        (name, [getattr(split, field) or 0.0 for field, _ in PARTS])
        for name, split in _splits(launches)
    ]
    return [(name, parts) for name, parts in rows if sum(parts) > 0]


def _splits(launches: Sequence[Named]) -> list[tuple[str, StepSplit]]:
    return [(n, r.result.split) for n, r in launches if r.result and r.result.split]


def _largest(parts: list[float]) -> str:
    total = sum(parts)
    ranked = sorted(zip(parts, PARTS, strict=True), key=lambda x: -x[0])
    told = [f"{name} {part / total * 100:.0f} %" for part, (_, name) in ranked[:3] if part > 0]
    return f"step {milliseconds(total)}, of which {', '.join(told)}"


def _parts_grid(splits: Sequence[tuple[str, StepSplit]]) -> Grid:
    columns = (Column("part"), *(Column(name, right=True) for name, _ in splits))
    rows = []
    for field, part in PARTS:
        values = [getattr(split, field) for _, split in splits]
        if any(value is not None for value in values):
            shown = ("not measured" if v is None else milliseconds(v) for v in values)
            rows.append((part, *shown))
    return Grid(columns, tuple(rows))
