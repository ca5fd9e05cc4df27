"""The picture of a run or of several: the outcome in words, and the most telling of its charts."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.formatting.number_text import count
from gpurun.formatting.one_line import one_line
from gpurun.report.page.charts import BarChart, Chart, LineChart, SpanChart
from gpurun.report.page.launch_sections import gauge_pictures, loss_picture, step_parts_picture
from gpurun.report.page.page_blocks import Page, Paragraph
from gpurun.report.page.run_contents import Named, RunContents, names_of
from gpurun.report.page.tuning_sections import gains_picture
from gpurun.report.plots import plot_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


LEGEND_ROOM = 0.22
"""The part of its height that a picture with several lines has above them, for their names."""
WORDS_ROOM = 0.4
"""The part of the width that bars leave to the words behind them."""
TITLE_LENGTH, NAME_LENGTH = 60, 30


def draw_chart(axes: Axes, chart: Chart) -> None:
    """Draw it with its title."""
    plot_style.plain(axes)
    if isinstance(chart, BarChart):
        _bars(axes, chart)
    elif isinstance(chart, SpanChart):
        _spans(axes, chart)
    else:
        _lines(axes, chart)


def _title(axes: Axes, words: str) -> None:
    axes.set_title(one_line(words, TITLE_LENGTH), fontsize=plot_style.USUAL, loc="left")


def _bars(axes: Axes, chart: BarChart) -> None:
    bars = [bar for bar in chart.bars if bar.drawable]
    bounds = [bar.bounds or (bar.value, bar.value) for bar in bars]
    below = [max(0.0, bar.value - low) for bar, (low, _) in zip(bars, bounds, strict=True)]
    above = [max(0.0, high - bar.value) for bar, (_, high) in zip(bars, bounds, strict=True)]
    drawn = axes.barh(
        _short([bar.name for bar in bars]),
        [bar.value for bar in bars],
        color=[plot_style.BETTER if bar.strong else plot_style.MEASURED for bar in bars],
        height=0.6,
        xerr=[below, above],
        error_kw={"ecolor": plot_style.LEVEL, "elinewidth": 1.5},
    )
    axes.bar_label(drawn, [bar.told for bar in bars], padding=3, fontsize=plot_style.SMALL)
    if chart.mark is not None:
        axes.axvline(chart.mark, color=plot_style.FAINT, linestyle="--", linewidth=1)
    axes.grid(visible=False)
    axes.invert_yaxis()
    axes.margins(x=WORDS_ROOM)
    _title(axes, chart.title)


def _spans(axes: Axes, chart: SpanChart) -> None:
    names = _short([name for name, _, _ in chart.rows])
    for name, (_, told, spans) in zip(names, chart.rows, strict=True):
        for span in spans:
            color = plot_style.SERIES[span.colour]
            height = 0.6 * span.filled
            axes.barh([name], span.end - span.begin, left=span.begin, color=color, height=height)
        end = max((span.end for span in spans), default=0.0)
        axes.annotate(
            told, (end, name), (3, 0), textcoords="offset points", va="center",
            fontsize=plot_style.SMALL,
        )  # fmt: skip
    for place in chart.colours_used:
        axes.barh(names[:1], 0.0, color=plot_style.SERIES[place], label=chart.names[place])
    axes.set_xlabel("ms", fontsize=plot_style.SMALL)
    axes.grid(visible=False)
    axes.invert_yaxis()
    axes.margins(y=0.35)
    axes.legend(fontsize=plot_style.SMALL, frameon=False, ncols=3, loc="lower left")
    _title(axes, chart.title)


def _lines(axes: Axes, chart: LineChart) -> None:
    lines = chart.finite_lines
    for number, line in enumerate(lines):
        axes.plot(
            *zip(*line.points, strict=True),
            color=plot_style.SERIES[number % len(plot_style.SERIES)],
            linewidth=1.2 + 0.9 * min(len(lines) - 1 - number, 2),  # equal curves stay visible
            linestyle="--" if line.dashed else "-",
            marker="o" if line.dots or len(line.points) == 1 else None,
            label=one_line(line.name, NAME_LENGTH),
        )
    axes.set_xlabel(chart.x_name, fontsize=plot_style.SMALL)
    lowest, highest = axes.get_ylim()
    if chart.from_zero:
        values = [value for line in lines for _, value in line.points]
        lowest, highest = 0.0, max([*values, chart.y_to or 0.0], default=0.0) * 1.06 or 1.0
    room = LEGEND_ROOM if len(lines) > 1 else 0.0
    axes.set_ylim(lowest, highest + room * (highest - lowest))
    if len(lines) > 1:
        axes.legend(fontsize=plot_style.SMALL, frameon=False, ncols=3, loc="upper right")
    _title(axes, f"{chart.title}; {chart.remark}" if chart.remark else chart.title)


def _short(names: Sequence[str]) -> list[str]:
    """Names as they are written, cut where there is no room; equal ones stay apart."""
    cut = [one_line(name, NAME_LENGTH) for name in names]
    return [f"{name}{' ' * cut[:n].count(name)}" for n, name in enumerate(cut)]


WIDTH, PANEL, EDGE = 11.0, 2.6, 0.9
"""Inches: of the picture, of the height of a row of panels, and of what is above them."""
MOST_PANELS = 12
HEADLINE_LENGTH, RUN_LENGTH = 100, 22


def draw_runs(path: Path, page: Page, runs: Sequence[RunContents]) -> bool:
    """Write the picture; False where there is nothing to draw. `OSError` if it cannot be written.

    `page`: the page about the same runs, for its words.
    """
    charts = charts_of(runs)
    if not charts:
        return False
    left, charts = len(charts) - MOST_PANELS, charts[:MOST_PANELS]
    columns = min(2, len(charts))
    rows = -(-len(charts) // columns)
    figure = plot_style.new_figure(WIDTH, PANEL * rows + EDGE)
    places = figure.subplots(rows, columns, squeeze=False).flat
    for axes, chart in zip(places, [*charts, None], strict=False):
        if chart is None:
            axes.set_axis_off()
        else:
            draw_chart(axes, chart)
    words = textwrap.fill(_headline(page), HEADLINE_LENGTH)
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


def charts_of(runs: Sequence[RunContents]) -> list[Chart]:
    """The charts of the page that the runs have data for; the outcome comes first."""
    several = len(runs) > 1
    names = [one_line(name, RUN_LENGTH) if several else "" for name in names_of(runs)]
    launches: list[Named] = [
        (f"{name} {recording.label}".strip() or "the run", recording)
        for name, run in zip(names, runs, strict=True)
        for recording in run.recordings
    ]
    pictures = [
        *(
            gains_picture(run.tuning, name)
            for name, run in zip(names, runs, strict=True)
            if run.tuning is not None
        ),
        step_parts_picture(launches),
        loss_picture(launches),
        *gauge_pictures(launches),
    ]
    return [picture.chart for picture in pictures if picture is not None]
