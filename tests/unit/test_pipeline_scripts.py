"""The scripts for pipelines that call scripts: short, and the command line by another name."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.repositories import commit, new_repository


@pytest.mark.parametrize(
    ("script", "words", "code", "said"),
    [
        ("run_benchmark", ["--help"], 0, "usage: gpurun bench"),
        ("run_benchmark", ["missing.py"], 2, "there is no script"),
        ("detect_regression", ["--help"], 0, "usage: gpurun bench"),
        ("detect_regression", ["mian", "train.py"], 2, "no branch, tag or commit 'mian'"),
        ("detect_regression", [], 2, "--compare needs a value"),
        ("detect_regression", ["--threshold", "5%", "main", "train.py"], 2, "REF comes first"),
        ("detect_regression", ["main", "--quiet", "train.py"], 4, "HEAD is the first commit"),
        ("optimize_model", ["--help"], 0, "--optimize"),
        ("optimize_model", ["--budget", "no", "train.py"], 2, "--budget: 'no' is not a duration"),
    ],
)
def test_a_script_is_the_command(
    script: str,
    words: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = new_repository(tmp_path / "project")
    commit(folder, {"train.py": ""})
    monkeypatch.chdir(folder)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    path = REPOSITORY / "scripts" / f"{script}.py"
    monkeypatch.setattr(sys, "argv", [str(path), *words])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    output = capsys.readouterr()
    assert ended.value.code == code, output.err
    assert said in output.out + output.err
    assert len(path.read_text().splitlines()) < 60
