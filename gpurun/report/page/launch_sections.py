"""Sections of what launches measured: parts of the step, series over time, loss curves."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.formatting.number_text import byte_size, count, milliseconds, number
from gpurun.records.result import StepSplit
from gpurun.report.page.charts import Line, LineChart, stacked_chart
from gpurun.report.page.page_blocks import Block, Paragraph, Picture, Pictures, Section, Table
from gpurun.report.page.recorded_series import GIB, Gauge, LossSeries, Series
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
    picture = step_parts_picture(launches)
    if picture is None:
        return None
    blocks: list[Block] = [picture, Table(_parts_grid(_splits(launches)))]
    if any(recording.folder for _, recording in launches):
        blocks.append(Paragraph(ONE_LAUNCH))
    if any(recording.result and recording.result.devices for _, recording in launches):
        blocks.append(Paragraph(ON_GPU))
    return Section("Step", tuple(blocks))


def step_parts_picture(launches: Sequence[Named]) -> Picture | None:
    """Where they were measured, the milliseconds of each of `PARTS`, a row a launch."""
    parts = [
        (name, [getattr(split, field) or 0.0 for field, _ in PARTS])
        for name, split in _splits(launches)
    ]
    rows = [(name, milliseconds(sum(each)), each) for name, each in parts if sum(each) > 0]
    if not rows:
        return None
    chart = stacked_chart("Parts of the mean step", rows, [name for _, name in PARTS])
    sentence = "; ".join(f"{name}: {_largest(each)}" for name, _, each in rows)
    return Picture(chart, f"{sentence}.")


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
    pictures = gauge_pictures(launches)
    if not pictures:
        return None
    spans = "Means are over the measured steps, lowest and highest values over the whole launch."
    return Section("Devices over time", (Pictures(tuple(pictures)), Paragraph(spans)))


def gauge_pictures(launches: Sequence[Named]) -> list[Picture]:
    """Launches of one figure stand beside each other and on one scale."""
    figures: dict[str, list[tuple[str, Gauge]]] = {}
    for name, recording in launches:
        for gauge in recording.gauges:
            figures.setdefault(gauge.title, []).append((name, gauge))
    pictures: list[Picture] = []
    for both in figures.values():
        highest = max(series.high for _, gauge in both for series in gauge.series)
        pictures += [_gauge_picture(name, gauge, highest) for name, gauge in both]
    return pictures


def _gauge_picture(launch: str, gauge: Gauge, highest: float) -> Picture:
    title = f"{gauge.title}, {gauge.unit}{f': {launch}' if launch else ''}"
    lines = [Line(series.name, series.points) for series in gauge.series]
    chart = LineChart(title, lines, "seconds", x_from=0.0, y_to=highest)
    sentence = "; ".join(_summary(series, gauge.unit) for series in gauge.series)
    by_device = f"; mean of each: {', '.join(map(number, gauge.means))}" if gauge.means else ""
    whose = f"{launch}: " if launch else ""
    return Picture(chart, f"{whose}{sentence}{by_device}.")


def _summary(series: Series, unit: str) -> str:
    mean, low, high = (_text(value, unit) for value in (series.mean, series.low, series.high))
    return f"{series.name}: mean {mean}, from {low} to {high}"


def _text(value: float, unit: str) -> str:
    return byte_size(value * GIB) if unit == "GiB" else f"{number(value)} {unit}"


def loss_section(launches: Sequence[Named]) -> Section | None:
    """The loss curves in one picture; None where no loss was looked at."""
    picture = loss_picture(launches)
    return None if picture is None else Section("Loss", (picture,))


def loss_picture(launches: Sequence[Named]) -> Picture | None:
    """The loss by step of each launch; steps whose loss was not finite are counted in words."""
    curves = [(name, r.loss) for name, r in launches if r.loss is not None]
    if not curves:
        return None
    lines = [Line(name or "loss", curve.series.points) for name, curve in curves]
    broken = [(name, curve.not_finite) for name, curve in curves if curve.not_finite]
    remark = "; ".join(f"{name} not finite in {count(steps, 'step')}" for name, steps in broken)
    chart = LineChart("Loss by step", lines, "step", from_zero=False, remark=remark)
    return Picture(chart, f"{'; '.join(_loss_summary(*each) for each in curves)}.")


def _loss_summary(name: str, curve: LossSeries) -> str:
    points = curve.series.points
    begin, end = number(points[0][1]), number(points[-1][1])
    broken = ""
    if curve.not_finite:
        broken = f"; it was not finite in {count(curve.not_finite, 'step')}"
    said = f"from {begin} to {end} at step {points[-1][0]:,.0f}, lowest {number(curve.series.low)}"
    return f"{name or 'loss'}: {said}{broken}"
