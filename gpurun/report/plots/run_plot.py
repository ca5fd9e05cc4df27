"""One picture of a run or of several: the outcome in words, gains, step parts, series, loss."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.formatting.number_text import count, factor, milliseconds
from gpurun.formatting.one_line import one_line
from gpurun.report.page.bar_chart import Bar
from gpurun.report.page.page_blocks import Page, Paragraph
from gpurun.report.page.recorded_series import Gauge
from gpurun.report.page.run_contents import Named, RunContents, names_of
from gpurun.report.page.step_parts_section import PARTS, step_parts
from gpurun.report.page.tuning_sections import GAINS, ladder_bars
from gpurun.report.plots import plot_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, PANEL, EDGE = 11.0, 2.6, 0.9
"""Inches: of the picture, of the height of a row of panels, and of what is above them."""
LEGEND_ROOM = 0.22
"""The part of its height that a picture with several lines has above them, for their names."""
MOST_PANELS = 12
TITLE_LENGTH, NAME_LENGTH, RUN_LENGTH = 100, 30, 22

Draw = Callable[["Axes"], None]


def draw_runs(path: Path, page: Page, runs: Sequence[RunContents]) -> bool:
    """Write the picture; False where there is nothing to draw. `OSError` if it cannot be written.

    `page`: the page about the same runs, for its words.
    """
    panels = panels_of(runs)
    if not panels:
        return False
    left, panels = len(panels) - MOST_PANELS, panels[:MOST_PANELS]
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = plot_style.new_figure(WIDTH, PANEL * rows + EDGE)
    places = figure.subplots(rows, columns, squeeze=False).flat
    for axes, panel in zip(places, [*panels, None], strict=False):
        if panel is None:
            axes.set_axis_off()
        else:
            plot_style.plain(axes)
            panel(axes)
    words = textwrap.fill(_headline(page), TITLE_LENGTH)
    figure.suptitle(words, fontsize=plot_style.LARGE, fontweight="bold")
    if left > 0:
        caption = f"not drawn: {count(left, 'more panel')}"
        figure.supxlabel(caption, fontsize=plot_style.SMALL, color=plot_style.TEXT)
    plot_style.save_png(figure, path)
    return True


def _headline(page: Page) -> str:
    """The page's title; of a single run also the sentence that matters most."""
    blocks = [block for section in page.parts[0].sections for block in section.blocks]
    strong = next((b.text for b in blocks if isinstance(b, Paragraph) and b.strong), "")
    return f"{page.title}. {strong}" if strong and len(page.parts) == 1 else page.title


def panels_of(runs: Sequence[RunContents]) -> list[Draw]:
    """A function for each panel that the runs have data for; the outcome comes first."""
    several = len(runs) > 1
    names = [one_line(name, RUN_LENGTH) if several else "" for name in names_of(runs)]
    launches: list[Named] = [
        (f"{name} {recording.label}".strip() or "the run", recording)
        for name, run in zip(names, runs, strict=True)
        for recording in run.recordings
    ]
    panels: list[Draw] = [
        partial(_gains, name, bars)
        for name, run in zip(names, runs, strict=True)
        if run.tuning is not None and (bars := ladder_bars(run.tuning))
    ]
    if parts := step_parts(launches):
        panels.append(partial(_step, parts))
    curves = [
        (name, recording.loss.series.points) for name, recording in launches if recording.loss
    ]
    if curves:
        broken = [(n, r.loss.not_finite) for n, r in launches if r.loss and r.loss.not_finite]
        told = [f"{name} not finite in {count(steps, 'step')}" for name, steps in broken]
        panels.append(partial(_lines, "; ".join(["Loss", *told]), "step", curves))
    gauges = [(name, gauge) for name, recording in launches for gauge in recording.gauges]
    titles = list(dict.fromkeys(gauge.title for _, gauge in gauges))
    gauges.sort(key=lambda named: titles.index(named[1].title))  # the same of each launch together
    return panels + [partial(_gauge, name, gauge) for name, gauge in gauges]


def _gains(name: str, bars: Sequence[Bar], axes: Axes) -> None:
    """The factor of throughput after each stage, with its interval."""
    values = [bar.value for bar in bars]
    bounds = [bar.bounds or (v, v) for bar, v in zip(bars, values, strict=True)]
    errors = [(max(0.0, v - a), max(0.0, b - v)) for v, (a, b) in zip(values, bounds, strict=True)]
    drawn = axes.barh(
        _short([bar.name for bar in bars]),
        values,
        color=[plot_style.BETTER if bar.strong else plot_style.MEASURED for bar in bars],
        height=0.6,
        xerr=list(zip(*errors, strict=True)),
        error_kw={"ecolor": plot_style.LEVEL, "elinewidth": 1.5},
    )
    axes.bar_label(drawn, [factor(v) for v in values], padding=3, fontsize=plot_style.SMALL)
    axes.axvline(1.0, color=plot_style.FAINT, linestyle="--", linewidth=1)
    axes.grid(visible=False)
    axes.invert_yaxis()
    _title(axes, f"{GAINS}{f': {name}' if name else ''}")


def _step(parts: Sequence[tuple[str, Sequence[float]]], axes: Axes) -> None:
    """The parts of the mean step of each launch, one after the other."""
    names = _short([name for name, _ in parts])
    left = [0.0] * len(parts)
    for number, (_, part) in enumerate(PARTS):
        widths = [values[number] for _, values in parts]
        if any(widths):
            color = plot_style.SERIES[number]
            bars = axes.barh(names, widths, left=left, color=color, height=0.6, label=part)
            left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.bar_label(bars, [milliseconds(x) for x in left], padding=3, fontsize=plot_style.SMALL)
    axes.set_xlabel("ms", fontsize=plot_style.SMALL)
    axes.grid(visible=False)
    axes.invert_yaxis()
    axes.margins(y=0.35)
    axes.legend(fontsize=plot_style.SMALL, frameon=False, ncols=3, loc="lower left")
    _title(axes, "Parts of the mean step")


def _gauge(name: str, gauge: Gauge, axes: Axes) -> None:
    lines = [(series.name, series.points) for series in gauge.series]
    _lines(f"{gauge.title}, {gauge.unit}: {name}", "seconds", lines, axes)
    highest = max((value for _, points in lines for _, value in points), default=0.0)
    room = 0.06 if len(lines) == 1 else LEGEND_ROOM
    axes.set_ylim(0.0, (1.0 + room) * highest if highest > 0 else 1.0)


def _lines(
    title: str, x: str, lines: Sequence[tuple[str, Sequence[tuple[float, float]]]], axes: Axes
) -> None:
    for number, (name, points) in enumerate(lines):
        color = plot_style.SERIES[number % len(plot_style.SERIES)]
        label = one_line(name, NAME_LENGTH)
        width = 1.2 + 0.9 * min(len(lines) - 1 - number, 2)  # equal curves stay visible
        dot = "o" if len(points) == 1 else None
        axes.plot(*zip(*points, strict=True), color=color, linewidth=width, marker=dot, label=label)
    axes.set_xlabel(x, fontsize=plot_style.SMALL)
    if len(lines) > 1:
        lowest, highest = axes.get_ylim()
        axes.set_ylim(lowest, highest + LEGEND_ROOM * (highest - lowest))
        axes.legend(fontsize=plot_style.SMALL, frameon=False, ncols=3, loc="upper right")
    _title(axes, title)


def _short(names: Sequence[str]) -> list[str]:
    """Names as they are written, cut where there is no room; equal ones stay apart."""
    cut = [one_line(name, NAME_LENGTH) for name in names]
    return [f"{name}{' ' * cut[:n].count(name)}" for n, name in enumerate(cut)]


def _title(axes: Axes, words: str) -> None:
    axes.set_title(one_line(words, 60), fontsize=plot_style.USUAL, loc="left")
