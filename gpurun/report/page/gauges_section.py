"""The section of the series that were sampled over time: GPU activity, power, memory and others."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.formatting.number_text import byte_size, number
from gpurun.report.page.line_chart import Line, line_chart
from gpurun.report.page.page_blocks import Paragraph, Picture, Pictures, Section
from gpurun.report.page.recorded_series import GIB, Gauge, Series
from gpurun.report.page.run_contents import Named


def gauges_section(launches: Sequence[Named]) -> Section | None:
    """Series over time, a picture each, launches of one figure beside each other and on one scale;
    None where nothing was sampled."""
    figures: dict[str, list[tuple[str, Gauge]]] = {}
    for name, recording in launches:
        for gauge in recording.gauges:
            figures.setdefault(gauge.title, []).append((name, gauge))
    pictures: list[Picture] = []
    for both in figures.values():
        highest = max(series.high for _, gauge in both for series in gauge.series)
        pictures += [_gauge_picture(name, gauge, highest) for name, gauge in both]
    if not pictures:
        return None
    spans = "Means are over the measured steps, lowest and highest values over the whole launch."
    return Section("Devices over time", (Pictures(tuple(pictures)), Paragraph(spans)))


def _gauge_picture(launch: str, gauge: Gauge, highest: float) -> Picture:
    title = f"{gauge.title}, {gauge.unit}{f': {launch}' if launch else ''}"
    lines = [Line(series.name, series.points) for series in gauge.series]
    sentence = "; ".join(_summary(series, gauge.unit) for series in gauge.series)
    by_device = f"; mean of each: {', '.join(map(number, gauge.means))}" if gauge.means else ""
    whose = f"{launch}: " if launch else ""
    chart = line_chart(title, lines, "seconds", x_from=0.0, y_to=highest)
    return Picture(chart, f"{whose}{sentence}{by_device}.")


def _summary(series: Series, unit: str) -> str:
    mean, low, high = (_text(value, unit) for value in (series.mean, series.low, series.high))
    return f"{series.name}: mean {mean}, from {low} to {high}"


def _text(value: float, unit: str) -> str:
    return byte_size(value * GIB) if unit == "GiB" else f"{number(value)} {unit}"
