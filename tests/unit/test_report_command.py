"""`gpurun report`: which runs it finds, where it writes, what it refuses."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpurun import main, rundir
from gpurun.records.codec import to_json
from gpurun.rundir import new_run, newest_run
from tests.unit.report_records import run_result


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPURUN_HOME", raising=False)


def run(name: str, home: Path = Path(".gpurun"), rate: float = 100.0) -> Path:
    folder = home / "runs" / name
    folder.mkdir(parents=True)
    result = run_result(samples_per_second=rate, command=("train.py",))
    (folder / "result.json").write_text(json.dumps(to_json(result)))
    return folder


def test_the_newest_run_is_the_default_and_its_page_lies_in_its_folder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("20260101-000000-aaaaaa")
    newest = run("20260102-000000-000000", rate=777.0)
    assert main(["report"]) == 0
    assert "777" in (newest / "report.html").read_text()
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[-1].startswith("verdict=ok exit=0 runs=1 missing=")


def test_a_price_says_what_the_training_costs(capsys: pytest.CaptureFixture[str]) -> None:
    run("20260101-000000-aaaaaa", rate=1000.0)
    assert main(["report", "--price", "3600", "--markdown", "-"]) == 0
    assert "at 3,600 $ an hour for each device: 1.00 $" in capsys.readouterr().out.replace("\\", "")


def test_of_runs_in_one_second_the_later_is_the_newest() -> None:
    for name, seconds in (("20260101-000000-bbbbbb", 1), ("20260101-000000-aaaaaa", 2)):
        os.utime(run(name), (seconds, seconds))
    newest = newest_run(Path(".gpurun"))
    assert newest is not None
    assert newest.name == "20260101-000000-aaaaaa"


def written(moment: float, form: str, at: time.struct_time | None = None) -> str:
    """As `time.strftime` at this moment."""
    return time.strftime(form, at or time.localtime(moment))


@pytest.fixture
def central_europe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("central_europe")
def test_a_run_after_the_end_of_summer_time_is_newer_than_one_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path(".gpurun/runs").mkdir(parents=True)
    before = 1_792_889_400  # ten to three in the summer, and twenty minutes later ten past two
    for moment in (before, before + 1200):
        clock = SimpleNamespace(
            gmtime=partial(time.gmtime, moment),
            strftime=partial(written, moment),
        )
        monkeypatch.setattr(rundir, "time", clock)
        made = new_run(Path(".gpurun"))
        (made / "spec.json").touch()
        assert newest_run(Path(".gpurun")) == made


def test_the_newest_of_a_thousand_runs_is_found() -> None:
    for number in range(1000):
        run(f"20260101-{number:06d}-aaaaaa")
    newest = newest_run(Path(".gpurun"))
    assert newest is not None
    assert newest.name == "20260101-000999-aaaaaa"


def test_runs_are_found_by_name_and_by_path(tmp_path: Path) -> None:
    first, second = run("20260101-000000-aaaaaa"), run("other", tmp_path / "records")
    page, words = tmp_path / "two.html", tmp_path / "two.md"
    flags = ["--quiet", "--html", str(page), "--markdown", str(words)]
    assert main(["report", first.name, *flags, str(second)]) == 0
    assert "2 runs side by side" in page.read_text()
    assert words.read_text().startswith("# gpurun: 2 runs side by side")
    assert not (first / "report.html").exists()


def test_records_elsewhere_are_found_by_flag_variable_and_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run("20260101-000000-aaaaaa", tmp_path / "records")
    assert main(["report", "--quiet", "--out", "records", "--html", "1.html"]) == 0
    Path("gpurun.toml").write_text('[run]\nout = "records"\n')
    assert main(["report", "--quiet", "--html", "2.html"]) == 0
    Path("gpurun.toml").unlink()
    monkeypatch.setenv("GPURUN_HOME", str(tmp_path / "records"))
    assert main(["report", "--quiet", folder.name, "--html", "3.html"]) == 0
    assert all(Path(f"{n}.html").exists() for n in (1, 2, 3))


def test_looking_for_runs_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert main(["report"]) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nothing-there"], "there is no run 'nothing-there'"),
        (["--html", "no/folder/x.html"], "--html: there is no folder no/folder"),
        (["--markdown", "."], "--markdown: . is a folder"),
        (["--png", "no/folder/x.png"], "--png: there is no folder no/folder"),
        (["--jason"], "--jason"),
        (["--price", "cheap"], "--price 'cheap' is no price"),
        (["--price", "0"], "--price '0' is no price"),
    ],
)
def test_a_refusal_says_what_is_wrong(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("20260101-000000-aaaaaa")
    assert main(["report", *words]) == 2
    assert told in capsys.readouterr().err


def test_a_missing_document_is_told_on_the_screen_too(capsys: pytest.CaptureFixture[str]) -> None:
    folder = run("20260101-000000-aaaaaa")
    (folder / "tuning.json").write_text("{")
    assert main(["report"]) == 0
    assert "missing: tuning.json cannot be read" in capsys.readouterr().err


def test_a_page_of_the_users_is_written_over_only_if_its_name_was_typed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("result.json").write_bytes((run("20260101-000000-aaaaaa") / "result.json").read_bytes())
    assert main(["report", "result.json"]) == main(["report", "result.json"]) == 0
    page = Path("result.html")
    page.write_text("<p>written by hand</p>")
    assert main(["report", "result.json"]) == 2
    assert "name another file with --html FILE" in capsys.readouterr().err
    assert page.read_text() == "<p>written by hand</p>"
    assert main(["report", "result.json", "--html", "result.html"]) == 0
    assert "by hand" not in page.read_text()


@pytest.mark.parametrize("flag", ["--html", "--png"])
def test_a_pipe_that_nobody_reads_is_one_line(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("20260101-000000-aaaaaa")
    os.mkfifo("pipe")
    assert main(["report", flag, "pipe"]) == 2
    assert f"{flag}" in capsys.readouterr().err


def test_a_picture_is_not_written_into_a_file_with_a_second_name() -> None:
    run("20260101-000000-aaaaaa")
    Path("mine.png").write_text("mine")
    os.link("mine.png", "second.png")
    assert main(["report", "--png", "second.png"]) == 0
    assert Path("mine.png").read_text() == "mine"
