"""`gpurun report --png`: what is drawn, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from gpurun import main
from gpurun.arguments.gpurun_toml import ReportConfig
from gpurun.commands.diagnose import diagnose_run
from gpurun.records.codec import to_json
from gpurun.report.page.run_contents import RunContents, read_contents
from gpurun.report.page.run_page import run_page
from gpurun.report.plots.run_plot import draw_runs
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
    rows = tuple(replace(row, value=odd) for row in tuned.tuning.ladder)
    run = replace(tuned, name=odd, command=(odd,), tuning=replace(tuned.tuning, ladder=rows))
    drawn(tmp_path / "odd.png", run, tuned)


def test_the_command_writes_it_beside_the_page(tmp_path: Path) -> None:
    run = unpacked("simplenet_as_written", tmp_path)
    page, picture = tmp_path / "page.html", tmp_path / "picture.png"
    assert main(["report", str(run), "--html", str(page), "--png", str(picture)]) == 0
    assert page.exists()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_run_that_recorded_nothing_to_draw_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "run.json"
    document.write_text(json.dumps(to_json(unmeasured_result())))
    assert main(["report", str(document), "--png", str(tmp_path / "x.png")]) == 2
    assert "recorded nothing to draw" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()
