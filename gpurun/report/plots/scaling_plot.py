"""Throughput and efficiency over the number of devices, measured points and projection apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpurun.formatting.number_text import count
from gpurun.records.scaling import ScalingPoint, ScalingReport
from gpurun.report.plots import plot_style
from gpurun.scaling.rank_devices import CORES
from gpurun.scaling.scaling_findings import GOOD

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROJECTED = "#c2571a"
WIDTH, HEIGHT = 10.0, 4.4
"""Inches."""
MOST_TICKS = 11
LONGEST_BAR = 1.3
"""The plot shows so much of an interval above its point."""


def draw_scaling(report: ScalingReport, path: Path) -> bool:
    """Write the picture; False where there is no measured point to draw. `OSError` if it cannot."""
    points = [point for point in report.points if point.efficiency is not None]
    if not points:
        return False
    figure = plot_style.new_figure(WIDTH, HEIGHT)
    left, right = figure.subplots(1, 2)
    _throughput(left, report, points)
    _efficiency(right, report, points)
    for axes in (left, right):
        _devices_axis(axes, report, points)
    command = " ".join(report.command)
    figure.suptitle(
        f"{report.mode} scaling of {command}", fontsize=plot_style.LARGE, fontweight="bold"
    )
    figure.supxlabel(_caption(report), fontsize=plot_style.SMALL, color=plot_style.TEXT)
    plot_style.save_png(figure, path)
    return True


def _caption(report: ScalingReport) -> str:
    devices = f"{report.devices} × {report.device}"
    if report.device == CORES:
        devices = f"CPU, {count(report.devices, 'core')} shared by the ranks"
    rounds = count(report.rounds, "round")
    return f"{devices}; {rounds}; bars: 95 % intervals of launches compared in turn"


def _throughput(axes: Axes, report: ScalingReport, points: list[ScalingPoint]) -> None:
    counted = all(point.samples_per_second is not None for point in points)
    unit = "samples/s" if counted else "speedup"
    values = [_rate(point, counted) for point in points]
    gpus = [point.gpus for point in points]
    last = _last(report, points)
    per_device = values[0] / gpus[0]
    linear = [values[0], per_device * last]
    axes.plot(
        [gpus[0], last], linear, color=plot_style.FAINT, linestyle="--", linewidth=1, label="linear"
    )
    _project(axes, report, points[-1], lambda devices, share: per_device * devices * share)
    axes.errorbar(gpus, values, yerr=_bars(points, values), **_style())
    for ranks, value in zip(gpus, values, strict=True):
        _label(axes, (ranks, value), f"{value:,.4g}", offset=(-7, 5), side="right")
    axes.set_ylabel(unit)
    if last > 16:
        axes.set_yscale("log", base=10)
        axes.yaxis.set_major_formatter("{x:,.10g}")  # not as a formula
    else:  # a bar that is longer leaves the picture
        axes.set_ylim(0, 1.15 * max(*values, *linear))
    axes.set_title("throughput", fontsize=plot_style.USUAL)
    axes.legend(fontsize=plot_style.SMALL, frameon=False, loc="upper left")


def _efficiency(axes: Axes, report: ScalingReport, points: list[ScalingPoint]) -> None:
    values = [100 * (point.efficiency or 0.0) for point in points]
    gpus = [point.gpus for point in points]
    axes.axhline(100, color=plot_style.FAINT, linestyle="--", linewidth=1)
    axes.axhline(100 * GOOD, color=plot_style.FAINT, linestyle=":", linewidth=1, label="90 %")
    _project(axes, report, points[-1], lambda devices, share: 100 * share)
    axes.errorbar(gpus, values, yerr=_bars(points, values), **_style())
    highest = 0.0
    for point, value in zip(points, values, strict=True):
        top = min(100 * _band(point)[1], value * LONGEST_BAR)
        highest = max(highest, top)
        _label(axes, (point.gpus, top), f"{value:.0f} %", offset=(0, 5), side="center")
    axes.set_ylabel("efficiency, %")
    axes.set_ylim(0, max(115.0, 1.08 * highest))
    axes.set_title("efficiency", fontsize=plot_style.USUAL)
    axes.legend(fontsize=plot_style.SMALL, frameon=False, loc="best")


def _project(
    axes: Axes, report: ScalingReport, last: ScalingPoint, value: Callable[[int, float], float]
) -> None:
    """Draw the projection from the last measured point on. `value`: of devices and efficiency."""
    if report.projection is None:
        return
    shown = [(last.gpus, last.efficiency or 1.0, _band(last))]
    shown += [(p.gpus, p.efficiency, p.efficiency_band) for p in report.projection.points]
    gpus = [n for n, _, _ in shown]
    middle = [value(n, share) for n, share, _ in shown]
    low = [value(n, band[0]) for n, _, band in shown]
    high = [value(n, band[1]) for n, _, band in shown]
    axes.fill_between(gpus, low, high, color=PROJECTED, alpha=0.15, linewidth=0)
    axes.plot(
        gpus, middle, color=PROJECTED, linestyle="-.", linewidth=1.3, marker="o", markersize=3.5,
        markerfacecolor="white", label="projection, not measured",
    )  # fmt: skip


def _label(
    axes: Axes, at: tuple[float, float], text: str, offset: tuple[float, float], side: str
) -> None:
    """Name a point; `offset` in points, `side`: which side of the text is there."""
    axes.annotate(text, at, offset, textcoords="offset points", fontsize=plot_style.SMALL, ha=side)


def _style() -> dict[str, Any]:
    return {
        "color": plot_style.MEASURED,
        "marker": "o",
        "markersize": 6,
        "linewidth": 1.6,
        "capsize": 3,
        "label": "measured",
        "zorder": 3,
    }


def _bars(points: list[ScalingPoint], values: list[float]) -> list[list[float]]:
    """Lengths of the error bars below and above, in the values' unit."""
    below, above = [], []
    for point, value in zip(points, values, strict=True):
        low, high = _band(point)
        middle = point.efficiency or 1.0
        below.append(value * max(1 - low / middle, 0.0))
        above.append(value * max(high / middle - 1, 0.0))
    return [below, above]


def _band(point: ScalingPoint) -> tuple[float, float]:
    middle = point.efficiency or 1.0
    return point.efficiency_confidence_interval or (middle, middle)


def _rate(point: ScalingPoint, counted: bool) -> float:
    value = point.samples_per_second if counted else point.speedup
    return value or 0.0


def _last(report: ScalingReport, points: list[ScalingPoint]) -> int:
    ahead = report.projection
    return points[-1].gpus if ahead is None or not ahead.points else ahead.points[-1].gpus


def _devices_axis(axes: Axes, report: ScalingReport, points: list[ScalingPoint]) -> None:
    ticks = [point.gpus for point in points]
    if report.projection is not None:
        ticks += [point.gpus for point in report.projection.points]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks[:MOST_TICKS], [f"{tick:,}" for tick in ticks[:MOST_TICKS]])
    axes.minorticks_off()
    axes.margins(x=0.1)
    axes.set_xlabel("ranks" if report.device == CORES else "devices", fontsize=plot_style.USUAL)
    plot_style.plain(axes)
