"""`gpurun report --png`: what is drawn, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from PIL import Image

from gpurun import main
from gpurun.arguments.gpurun_toml import ReportConfig
from gpurun.commands.diagnosed_launch import diagnose_run
from gpurun.records.codec import to_json
from gpurun.report.page.recorded_series import LossSeries, Series
from gpurun.report.page.run_contents import Recording, RunContents, read_contents
from gpurun.report.page.run_page import run_page
from gpurun.report.plots import plot_style
from gpurun.report.plots.run_plot import charts_of, draw_chart, draw_runs
from tests.recordings import unpacked
from tests.unit.report_records import unmeasured_result


def drawn(path: Path, *runs: RunContents) -> tuple[int, int]:
    """Width and height of the picture."""
    assert draw_runs(path, run_page(runs, ReportConfig()), runs)
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        colors = picture.convert("RGB").getcolors(1 << 24) or []
        assert len(colors) > 50
        return picture.size


@pytest.fixture
def tuned(tmp_path: Path) -> RunContents:
    return read_contents(unpacked("gpt124m_tuning", tmp_path), diagnose_run)


def test_a_recorded_tuning_has_a_row_for_each_two_of_its_pictures(
    tuned: RunContents, tmp_path: Path
) -> None:
    whole = drawn(tmp_path / "whole.png", tuned)
    less = replace(tuned, recordings=tuple(replace(r, gauges=()) for r in tuned.recordings))
    assert drawn(tmp_path / "less.png", less)[1] < whole[1]


def test_words_of_others_are_drawn_as_they_are(tuned: RunContents, tmp_path: Path) -> None:
    odd = "$\\frac{$ _x^ <b> \n" * 20
    assert tuned.tuning is not None
    rows = tuple(replace(row, stage=odd) for row in tuned.tuning.ladder)
    run = replace(tuned, name=odd, command=(odd,), tuning=replace(tuned.tuning, ladder=rows))
    drawn(tmp_path / "odd.png", run, tuned)


def test_the_command_writes_it_beside_the_page(tmp_path: Path) -> None:
    run = unpacked("simplenet_as_written", tmp_path)
    page, picture = tmp_path / "page.html", tmp_path / "picture.png"
    assert main(["report", str(run), "--html", str(page), "--png", str(picture)]) == 0
    assert page.exists()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_run_that_recorded_nothing_to_draw_has_a_page_and_a_line_that_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "run.json"
    document.write_text(json.dumps(to_json(unmeasured_result())))
    assert main(["report", str(document), "--png", str(tmp_path / "x.png")]) == 0
    assert "missing: --png: nothing in these records can be drawn" in capsys.readouterr().err
    assert (tmp_path / "run.html").exists()
    assert not (tmp_path / "x.png").exists()


def panels(*runs: RunContents) -> list[tuple[str, Axes]]:
    """Title and content of each panel, as drawn."""
    found = []
    for chart in charts_of(runs):
        axes = plot_style.new_figure(5, 3).subplots()
        draw_chart(axes, chart)
        found.append((axes.get_title(loc="left"), axes))
    return found


def test_a_loss_of_one_step_is_a_dot_and_one_that_broke_says_so() -> None:
    once = Series("loss", ((3.0, 0.5),), 0.5, 0.5, 0.5)
    recording = Recording("", loss=LossSeries(once, not_finite=2))
    ((title, axes),) = panels(RunContents("one", recordings=(recording,)))
    assert title == "Loss by step; the run not finite in 2 steps"
    assert [line.get_marker() for line in axes.get_lines()] == ["o"]


def test_the_interval_of_the_proof_stands_on_the_bar_of_the_last_stage(tuned: RunContents) -> None:
    title, axes = panels(tuned)[0]
    assert title == "Gain over the script as it is, by stage"
    assert tuned.tuning is not None
    (bars,) = [c for c in axes.collections if isinstance(c, LineCollection)]
    ends = [(segment[0][0], segment[-1][0]) for segment in bars.get_segments()]
    assert ends[-1] == pytest.approx(tuned.tuning.speedup_confidence_interval)
    assert all(low == high for low, high in ends[:-1])


def test_panels_of_several_runs_have_their_names(tuned: RunContents) -> None:
    assert panels(tuned)[0][0] == "Gain over the script as it is, by stage"
    names = [title for title, _ in panels(replace(tuned, name="A" * 40), replace(tuned, name="B"))]
    assert names[1] == "Gain over the script as it is, by stage: B"
    cut = [title for title in names if title.endswith(("before", "after")) and "A" * 9 in title]
    assert len(set(cut)) == len(cut) > 2, "before and after can be told apart"


def test_what_has_no_room_is_counted(tuned: RunContents, tmp_path: Path) -> None:
    few, many = [drawn(tmp_path / f"{n}.png", *[tuned] * n)[1] for n in (2, 9)]
    assert many < 2 * few


def test_a_commit_whose_subject_would_be_a_broken_formula_is_drawn(tmp_path: Path) -> None:
    figure = plot_style.new_figure(4, 2)
    figure.subplots(1, 1).set_title("quote ${A}_ and ${B}_")
    figure.suptitle("scaling of train.py $x_")
    plot_style.save_png(figure, tmp_path / "odd.png")
    assert (tmp_path / "odd.png").stat().st_size > 1000
