"""The trends of a history, one above the other: records, levels, and where these change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.bench.trees.git import short
from gpurun.formatting.number_text import signed_percent
from gpurun.formatting.one_line import one_line
from gpurun.records.bench.history import History, ReferenceKind, Trend
from gpurun.report.comparison_text import NAMES
from gpurun.report.history_text import conditions, day, title
from gpurun.report.plots import plot_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, PANEL, EDGE = 10.0, 2.7, 0.7
"""Inches: of the picture, of the height of a panel, and of what is above and below them."""
MOST_PANELS = 12
MOST_TICKS = 8
LEAST_SPAN = 0.06
"""The part of the value that the vertical axis spans at least: noise is no mountain range."""
HEADROOM = 0.3
"""The part of the axis above the data in which changes are named."""
NEAR = 0.25
"""Changes so near, as a part of the width, are named at two heights."""


def draw_history(path: Path, history: History) -> None:
    """Write the picture; there is at least one trend. `OSError` where it cannot be written."""
    shown = history.trends[:MOST_PANELS]
    figure = plot_style.new_figure(WIDTH, PANEL * len(shown) + EDGE)
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    labels = conditions(history.trends)
    for axes, trend, label in zip(panels, shown, labels[: len(shown)], strict=True):
        _panel(axes, trend, label)
    figure.suptitle(title(history), fontsize=plot_style.LARGE, fontweight="bold")
    left = len(history.trends) - len(shown)
    more = f"; {left} more trends are not drawn" if left else ""
    caption = f"records in the order of commits; dots: single launches{more}"
    figure.supxlabel(caption, fontsize=plot_style.SMALL, color=plot_style.TEXT)
    plot_style.save_png(figure, path)


def _panel(axes: Axes, trend: Trend, label: str) -> None:
    scale, unit = _unit(trend)
    values = [point.value * scale for point in trend.points]
    launches = [
        (i, launch * scale) for i, point in enumerate(trend.points) for launch in point.launches
    ]
    _points(axes, trend, values, launches)
    for level in trend.levels:
        ends = [level.start - 0.4, level.stop - 0.6]
        axes.plot(ends, [level.value * scale] * 2, color=plot_style.LEVEL, linewidth=1.6, zorder=4)
    _limits(axes, [v for _, v in launches] + values, len(values))
    _accepted(axes, trend, scale)
    _changes(axes, trend)
    _commits(axes, trend)
    plot_style.plain(axes)
    if max(values) >= 1000:
        axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel(f"{NAMES[trend.metric]}, {unit}", fontsize=plot_style.USUAL)
    axes.set_title(
        one_line(f"{trend.benchmark}: {label}", 110), fontsize=plot_style.USUAL, loc="left"
    )
    if axes.get_legend_handles_labels()[1]:
        axes.legend(
            fontsize=plot_style.SMALL, frameon=False, ncols=2,
            loc="lower right", bbox_to_anchor=(1.0, 0.98), borderaxespad=0.2,  # beside the title
        )  # fmt: skip


def _points(
    axes: Axes, trend: Trend, values: list[float], launches: list[tuple[int, float]]
) -> None:
    """The launches in pale, and the records: filled, or hollow with uncommitted changes."""
    axes.scatter(
        [i for i, _ in launches],
        [v for _, v in launches],
        s=5,
        color=plot_style.MEASURED,
        alpha=0.25,
        linewidths=0,
    )
    axes.plot(range(len(values)), values, color=plot_style.MEASURED, linewidth=0.8, alpha=0.5)
    for dirty, face, name in (
        (False, plot_style.MEASURED, None),
        (True, "white", "uncommitted changes"),
    ):
        chosen = [i for i, point in enumerate(trend.points) if bool(point.dirty) is dirty]
        axes.scatter(
            chosen,
            [values[i] for i in chosen],
            s=20,
            facecolor=face,
            edgecolor=plot_style.MEASURED,
            linewidths=1,
            zorder=3,
            label=name if chosen else None,
        )


def _unit(trend: Trend) -> tuple[float, str]:
    """The factor for the values, and the unit that they then have."""
    if trend.unit == "s":
        return 1000.0, "ms"
    if trend.unit == "bytes":
        largest = max(point.value for point in trend.points)
        for power, unit in ((3, "GiB"), (2, "MiB")):
            if largest >= 1024.0**power:
                return 1024.0**-power, unit
        return 1 / 1024, "KiB"
    return 1.0, trend.unit


def _limits(axes: Axes, values: Sequence[float], length: int) -> None:
    low, high = min(values), max(values)
    span = max(high - low, LEAST_SPAN * high)
    middle = (low + high) / 2
    axes.set_ylim(middle - 0.58 * span, middle + (0.58 + HEADROOM) * span)
    axes.set_xlim(-0.8, max(length - 0.2, 4))


def _changes(axes: Axes, trend: Trend) -> None:
    top, length = axes.get_ylim()[1], len(trend.points)
    lowered, last = False, -length
    for change in trend.changes:
        lowered = change.start - last < NEAR * length and not lowered
        last = change.start
        better = change.direction == "improvement"
        color = plot_style.BETTER if better else plot_style.WORSE
        place = change.start - 0.5
        axes.axvline(place, color=color, linewidth=1.2, linestyle="--")
        commit = "" if change.commit is None else f" {short(change.commit)}"
        right = place > 0.8 * length
        axes.annotate(
            f"{signed_percent(change.change)}{commit}\n{one_line(change.subject or '', 28)}",
            (place, top), (-4 if right else 4, -28 if lowered else -2), textcoords="offset points",
            color=color, fontsize=plot_style.SMALL, ha="right" if right else "left", va="top",
        )  # fmt: skip


def _accepted(axes: Axes, trend: Trend, scale: float) -> None:
    reference = trend.reference
    if reference is None or reference.kind is not ReferenceKind.ACCEPTED:
        return
    commit = "" if reference.commit is None else f" {short(reference.commit)}"
    axes.axhline(
        reference.value * scale, color=plot_style.TEXT, linewidth=1, linestyle=":",
        label=f"accepted{commit}",
    )  # fmt: skip


def _commits(axes: Axes, trend: Trend) -> None:
    """Some of the commits by name and day."""
    count = len(trend.points)
    step = max(1, -(-count // MOST_TICKS))
    places = list(range(count - 1, -1, -step))[::-1]
    axes.set_xticks(places, [_tick(trend, place) for place in places])


def _tick(trend: Trend, place: int) -> str:
    point = trend.points[place]
    commit = "" if point.commit is None else f"{short(point.commit)}\n"
    return f"{commit}{day(point.time)}"
