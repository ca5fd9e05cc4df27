"""The look that all pictures share."""

from __future__ import annotations

import logging
import warnings
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.rundir import write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURED = "#1f6feb"
BETTER = "#1a7f37"
WORSE = "#cf222e"
LEVEL = "#24292f"
FAINT = "#8b949e"
TEXT = "#57606a"
SERIES = (MEASURED, BETTER, "#bf6a02", "#8250df", WORSE, "#8c959f", "#0e7c86", "#bf3989")
"""Colors of lines and parts, as on the page."""
SMALL, USUAL, LARGE = 8, 9, 11
"""Sizes of letters, in points."""
DOTS_PER_INCH = 130


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that size (inches), drawn without a screen and without pyplot's state."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of folders and fonts
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # a dollar sign in a path or a commit's subject begins no formula
    matplotlib.rcParams["text.parse_math"] = False
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(axes: Axes) -> None:
    """Axes as all pictures have them: two spines, a faint grid behind the data."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL, color=FAINT, labelcolor=TEXT)


def save_png(figure: Figure, path: Path) -> None:
    """Write the picture; `OSError` where it cannot be. Letters without a glyph become boxes."""
    picture = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(picture, format="png")
    write_output(path, picture.getvalue())
