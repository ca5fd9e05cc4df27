"""The picture of a run or of several: the outcome in words, and the most telling of its charts."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from gpurun.formatting.number_text import count
from gpurun.formatting.one_line import one_line
from gpurun.report.page.charts import Chart
from gpurun.report.page.launch_sections import gauge_pictures, loss_picture, step_parts_picture
from gpurun.report.page.page_blocks import Page, Paragraph
from gpurun.report.page.run_contents import Named, RunContents, names_of
from gpurun.report.page.tuning_sections import gains_picture
from gpurun.report.plots import plot_style
from gpurun.report.plots.chart_panels import draw_chart

WIDTH, PANEL, EDGE = 11.0, 2.6, 0.9
"""Inches: of the picture, of the height of a row of panels, and of what is above them."""
MOST_PANELS = 12
TITLE_LENGTH, RUN_LENGTH = 100, 22


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
