"""A mistyped command is not run as a script, and every command answers --help."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun import main
from gpurun.arguments.flag_parser import BELOW_BENCH
from gpurun.cli import COMMANDS
from gpurun.commands.bench import BELOW

EVERY = [[], *([name] for name in COMMANDS), *(["bench", name] for name in BELOW)]


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_every_command_answers_help(
    words: list[str], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, flag]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(" ".join(["usage: gpurun", *words]))
    assert shown.err == ""


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["profil", "train.py"], "gpurun profile"),
        (["docter"], "gpurun doctor"),
        (["monitr", "train.py"], "gpurun monitor"),
        (["Bench", "--compare", "main"], "gpurun bench"),
        (["--quiet", "benhc"], "gpurun bench"),
        (["bisect", "v1..v2"], "gpurun bench bisect"),
        (["optimise", "train.py"], "gpurun --optimize"),
        (["tune", "train.py"], "gpurun --optimize"),
        (["compare", "a", "b"], "gpurun report RUN RUN"),
        (["bench", "bisec", "v1..v2"], "gpurun bench bisect"),
        (["bench", "histroy"], "gpurun bench history"),
    ],
)
def test_a_mistyped_command_names_the_near_one(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    told = capsys.readouterr().err
    assert f"did you mean `{meant}`?" in told
    assert "there is no file" in told
    assert told.endswith("verdict=error exit=2\n")


def test_a_script_of_such_a_name_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("profile", "benhc"):
        (tmp_path / name).write_text("print('the script', __name__)\n")
        assert main(["--quiet", name]) == 0
        assert capfd.readouterr().out == "the script __main__\n"
    assert main(["--quiet", "./profile"]) == 0


def test_another_missing_script_is_pythons_to_report(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--quiet", "benchmark_resnet.py"]) == 2
    assert "can't open file" in capfd.readouterr().err


def test_the_names_below_bench_are_those_that_are_there() -> None:
    assert set(BELOW_BENCH) == set(BELOW)
