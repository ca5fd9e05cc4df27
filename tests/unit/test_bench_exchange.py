"""`gpurun bench export` and `gpurun bench import`: the records of one place in another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpurun import main
from gpurun.arguments.bench_subcommand_flags import EXCHANGE
from gpurun.bench.store import open_store
from tests.unit.benchmark_records import record


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPURUN_HOME", raising=False)


def filled(home: Path, *numbers: int) -> None:
    home.mkdir()
    for number in numbers:
        open_store(home, notice=print).add(record(number))


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


def test_records_go_from_one_store_to_another_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path / "here", 0, 1)
    open_store(tmp_path / "here", notice=print).accept("r0001", "Ada", "why")
    assert main(["bench", "export", "all.json", "--out", "here"]) == 0
    assert last_line(capsys) == "verdict=exported exit=0 records=2 baselines=1"
    assert main(["bench", "import", "--store", "sqlite:///there.db", "all.json"]) == 0
    assert last_line(capsys) == "verdict=imported exit=0 new=3"
    assert main(["bench", "import", "all.json", "--store", "sqlite:///there.db"]) == 0
    assert last_line(capsys) == "verdict=imported exit=0 new=0"
    there = open_store(tmp_path / "none", "sqlite:///there.db", notice=print)
    assert there.query() == [record(0), record(1)]
    assert [one.record for one in there.baselines()] == ["r0001"]


def test_several_files_and_those_of_single_records_are_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path / "here", 0, 1, 2)
    kept = sorted(str(path) for path in (tmp_path / "here" / "benchmarks").glob("*.json"))
    assert main(["bench", "import", *kept, "--quiet"]) == 0
    assert capsys.readouterr().err == "verdict=imported exit=0 new=3\n"


def test_a_dash_writes_to_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path / "here", 0)
    assert main(["bench", "export", "-", "--out", "here"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in document["records"]] == ["r0000"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["export"], "gpurun bench export needs a file"),
        (["import"], "gpurun bench import needs a file"),
        (["export", "a.json", "b.json"], "takes one file, not 'b.json' too"),
        (["export", "none/a.json"], "none/a.json could not be written: No such file"),
        (["import", "none.json"], "none.json cannot be read: No such file"),
        (["import", "text.json"], "text.json is not valid JSON: line 1 column 1"),
    ],
)
def test_what_cannot_be_is_one_line(
    tmp_path: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.json").write_text("text")
    assert main(["bench", *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("word", ["export", "import"])
def test_the_help_lists_every_flag(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", word, "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"--{flag}" in text for flag in EXCHANGE.names if flag != "help")
