"""The section of the loss curves."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.formatting.number_text import count, number
from gpurun.report.page.line_chart import Line, line_chart
from gpurun.report.page.page_blocks import Picture, Section
from gpurun.report.page.recorded_series import LossCurve
from gpurun.report.page.run_contents import Named


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
