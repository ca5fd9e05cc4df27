"""Series and pictures of a page: peaks stay, pictures have sizes, foreign text is text."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gpurun.measure.resource_use import Samples
from gpurun.records.samples import DeviceSample
from gpurun.report.page.charts import Bar, BarChart, Line, LineChart, stacked_chart
from gpurun.report.page.launch_sections import gauges_section
from gpurun.report.page.recorded_series import gauges_of, series_of, thinned
from gpurun.report.page.svg_charts import svg, tick_text, ticks

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert("1")</script>\n]]>&\x00'


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ET.fromstring(svg).iter(f"{SVG}text")]


def numbers(node: ET.Element, *names: str) -> list[float]:
    return [float(node.attrib[name]) for name in names]


def test_a_thinned_series_keeps_its_ends_and_every_peak() -> None:
    points = [(float(n), 0.0) for n in range(100_000)]
    points[31_415], points[77_777] = (31_415.0, 9.0), (77_777.0, -9.0)
    kept = thinned(points)
    assert len(kept) <= 400
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert {points[31_415], points[77_777]} <= set(kept)
    assert list(kept) == sorted(kept)


def test_a_short_series_stays_whole() -> None:
    points = [(float(n), float(n % 7)) for n in range(400)]
    assert thinned(points) == tuple(points)


def test_the_figures_of_a_series_are_those_of_all_its_values() -> None:
    series = series_of("x", [(float(n), float(n % 10 == 0)) for n in range(10_000)])
    assert series is not None
    assert (series.mean, series.low, series.high) == (0.1, 0.0, 1.0)
    assert series_of("x", [(1.0, float("nan")), (2.0, float("inf"))]) is None


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0.0, 95.0, (0.0, 25.0, 50.0, 75.0, 100.0)),
        (0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0)),
        (2.28, 2.31, (2.28, 2.29, 2.3, 2.31)),
    ],
)
def test_ticks_are_round_and_enclose_the_range(
    low: float, high: float, wanted: tuple[float, ...]
) -> None:
    assert ticks(low, high) == pytest.approx(wanted)


def test_ticks_are_written_without_false_zeros() -> None:
    assert [tick_text(x) for x in (0.0, 0.5, 40_000.0, 2.29)] == ["0", "0.5", "40,000", "2.29"]


def test_lines_lie_inside_their_picture() -> None:
    lines = [Line("a", [(1, -5.0), (2, 7.0), (9, 1e6)])]
    root = ET.fromstring(svg(LineChart("Loss", lines, "step", from_zero=False)))
    width, height = numbers(root, "width", "height")
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == "Loss"
    (line,) = root.iter(f"{SVG}polyline")
    for place in line.attrib["points"].split():
        x, y = map(float, place.split(","))
        assert 0 <= x <= width
        assert 0 <= y <= height


@pytest.mark.parametrize("points", [[(3.0, 4.0)], [(1.0, 2.0), (1.0, 2.0)], [(0.0, 0.0)]])
def test_a_line_without_extent_is_drawn(points: list[tuple[float, float]]) -> None:
    assert "nan" not in svg(LineChart("t", [Line("a", points)], "x"))


def test_several_lines_have_a_legend_and_one_has_none() -> None:
    lines = [Line("first", [(0, 1), (1, 2)]), Line("second", [(0, 2), (1, 1)])]
    assert "second" in texts(svg(LineChart("t", lines, "x")))
    assert "first" not in texts(svg(LineChart("t", lines[:1], "x")))


def test_bars_are_as_long_as_their_values() -> None:
    bars = [Bar("a", "×1", 1.0), Bar("b", "nan", math.nan), Bar("c", "×4", 4.0)]
    drawn = list(ET.fromstring(svg(BarChart("t", bars))).iter(f"{SVG}rect"))
    short, long = (numbers(bar, "width")[0] for bar in drawn)
    assert long == pytest.approx(4 * short)


def test_parts_of_a_bar_follow_one_another() -> None:
    rows = [("before", "10 ms", [4.0, 6.0]), ("after", "5 ms", [1.0, 4.0])]
    root = ET.fromstring(svg(stacked_chart("t", rows, "ab")))
    bars = [numbers(r, "x", "width", "y") for r in root.iter(f"{SVG}rect")][:4]
    assert bars[1][0] == pytest.approx(bars[0][0] + bars[0][1])
    assert bars[3][0] == pytest.approx(bars[2][0] + bars[2][1])
    assert bars[0][1] + bars[1][1] == pytest.approx(2 * (bars[2][1] + bars[3][1]), abs=0.2)


def test_foreign_text_is_text_in_every_picture() -> None:
    line = [Line(HOSTILE, [(0, 1), (1, 2)]), Line("b", [(0, 1)])]
    for chart in (
        LineChart(HOSTILE, line, HOSTILE),
        BarChart(HOSTILE, [Bar(HOSTILE, HOSTILE, 1.0, (0.5, 2.0))], mark=1.0),
        stacked_chart(HOSTILE, [(HOSTILE, HOSTILE, [1.0])], [HOSTILE]),
    ):
        assert not list(ET.fromstring(svg(chart)).iter(f"{SVG}script"))
        assert any(said.startswith("<script>alert") for said in texts(svg(chart)))


def sample(second: int, gpu: int, activity: float) -> DeviceSample:
    return DeviceSample(
        second * 10**9, f"GPU-{gpu}", "H200", gpu, 100.0, 2**30, 2**37, 300.0, None, None, None,
        (), None, None, activity, None, None,
    )  # fmt: skip


def test_many_gpus_are_drawn_as_the_lowest_the_highest_and_their_mean() -> None:
    samples = [sample(n, gpu, 80.0 + gpu - 40.0 * (gpu == 5)) for n in range(9) for gpu in range(8)]
    activity, memory, power = gauges_of(Samples((), tuple(samples)))
    assert [s.name for s in activity.series] == ["lowest GPU", "highest GPU", "mean of 8 GPUs"]
    assert [s.mean for s in activity.series] == pytest.approx([45.0, 87.0, 78.5])
    assert activity.means == pytest.approx([80, 81, 82, 83, 84, 45, 86, 87])
    assert (memory.unit, power.series[0].mean) == ("GiB", 300.0)


def test_few_gpus_have_a_line_each_and_one_has_lines_by_unit() -> None:
    two = [sample(n, gpu, 50.0) for n in range(3) for gpu in range(2)]
    names = [s.name for s in gauges_of(Samples((), tuple(two)))[0].series]
    assert names == ["GPU 0: H200", "GPU 1: H200"]
    one = gauges_of(Samples((), tuple(two[::2])))[0]
    assert [s.name for s in one.series] == ["SM activity"]


def test_a_low_value_is_no_zero() -> None:
    used = DeviceSample(
        0, "GPU-1", "NVIDIA H200", 0, 0.05, 5 << 20, None, None, None, None, None, (), None,
        None, None, None, None,
    )  # fmt: skip
    later = replace(used, unix_time_ns=1, utilization_percent=90.0, memory_used_bytes=64 << 30)
    gauges = gauges_of(Samples((), (used, later)))
    section = gauges_section([("", SimpleNamespace(gauges=gauges))])  # type: ignore[list-item]
    assert section is not None
    told = repr(section)
    assert "from 5.00 MiB to 64.0 GiB" in told
    assert "from 0.0500 % to 90.0 %" in told
