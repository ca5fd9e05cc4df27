"""Sections of what launches recorded: step parts, series over time, loss."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.formatting.number_text import count, milliseconds, number
from gpurun.records.result import StepSplit
from gpurun.report.page.bar_chart import stacked_bars
from gpurun.report.page.line_chart import Line, line_chart
from gpurun.report.page.page_blocks import Block, Paragraph, Picture, Pictures, Section, Table
from gpurun.report.page.recorded_series import Gauge, LossCurve, Series
from gpurun.report.page.run_contents import Recording
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

Named = tuple[str, Recording]
"""A launch with the name under which the page shows it."""


def step_section(launches: Sequence[Named]) -> Section | None:
    """The parts of the mean step of each launch; None where no launch has parts."""
    rows = step_parts(launches)
    if not rows:
        return None
    bars = [(name, milliseconds(sum(parts)), parts) for name, parts in rows]
    picture = stacked_bars("Parts of the mean step", bars, [name for _, name in PARTS])
    sentence = "; ".join(f"{name}: {_largest(parts)}" for name, parts in rows)
    blocks: list[Block] = [Picture(picture, f"{sentence}."), Table(_parts_grid(_splits(launches)))]
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


def gauges_section(launches: Sequence[Named]) -> Section | None:
    """Series over time, a picture each; None where nothing was sampled."""
    pictures = [
        _gauge_picture(f"{gauge.title}, {gauge.unit}{f': {name}' if name else ''}", gauge)
        for name, recording in launches
        for gauge in recording.gauges
    ]
    if not pictures:
        return None
    spans = "Means are over the measured steps, lowest and highest values over the whole launch."
    return Section("Devices over time", (Pictures(tuple(pictures)), Paragraph(spans)))


def _gauge_picture(title: str, gauge: Gauge) -> Picture:
    lines = [Line(series.name, series.points) for series in gauge.series]
    sentence = "; ".join(_summary(series, gauge.unit) for series in gauge.series)
    by_device = f"; mean of each: {', '.join(map(number, gauge.means))}" if gauge.means else ""
    return Picture(line_chart(title, lines, "seconds", x_from=0.0), f"{sentence}{by_device}.")


def _summary(series: Series, unit: str) -> str:
    low, high = number(series.low), number(series.high)
    return f"{series.name}: mean {number(series.mean)} {unit}, from {low} to {high}"


def loss_section(launches: Sequence[Named]) -> Section | None:
    """The loss curves in one picture; None where no loss was looked at."""
    curves = [(name, r.loss) for name, r in launches if r.loss is not None]
    if not curves:
        return None
    lines = [Line(name or "loss", curve.series.points) for name, curve in curves]
    picture = line_chart("Loss by step", lines, "step", from_zero=False)
    sentence = "; ".join(_loss_summary(name, curve) for name, curve in curves)
    return Section("Loss", (Picture(picture, f"{sentence}."),))


def _loss_summary(name: str, curve: LossCurve) -> str:
    points = curve.series.points
    begin, end = number(points[0][1]), number(points[-1][1])
    broken = ""
    if curve.not_finite:
        broken = f"; it was not finite in {count(curve.not_finite, 'step')}"
    said = f"from {begin} to {end} at step {points[-1][0]:,.0f}, lowest {number(curve.series.low)}"
    return f"{name or 'loss'}: {said}{broken}"
