"""`gpurun explain`: findings and knobs by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.cli import main
from gpurun.knobs import all_knobs
from gpurun.records.finding import FindingType


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_finding_names_the_knobs_that_may_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "data_loading"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("data_loading (finding): ")
    assert "loader_workers" in told.splitlines()[-1]


def test_a_name_may_be_written_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "Data loading", "loader-workers"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("data_loading (finding): ")
    assert "loader_workers (knob): " in told


def test_a_knob_says_its_effect_and_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "tf32", "fused_optimizer"]) == 0
    told = capsys.readouterr().out
    assert "tf32 (knob): " in told
    assert "Effect: numerics. Stage: precision." in told
    assert told.rstrip().endswith("Values: fused, foreach.")


def test_without_a_name_every_finding_and_knob_has_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain"]) == 0
    names = [line.partition(" (")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [*dict.fromkeys(names)]
    assert set(names) == {one.value for one in FindingType} | {one.name for one in all_knobs()}


def test_knobs_of_the_users_own_are_explained(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.py").write_text(
        "from gpurun.knobs.api import Effect, Knob, Skip\n"
        "class Mine(Knob):\n"
        '    """Turns something."""\n'
        "    name, effect = 'mine', Effect.PIPELINE\n"
        "    def candidates(self, facts): return Skip('no')\n"
        "    def apply(self, value, hooks): pass\n"
    )
    (folder / "gpurun.toml").write_text('knobs = ["mine.py"]\n')
    assert main(["explain", "mine"]) == 0
    assert "mine (knob): Turns something." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "todo"),
    [
        ("loader_worker", "did you mean loader_workers?"),
        ("wait for the data loader", "did you mean data_loading"),
        ("?", "lists all"),
    ],
)
def test_an_unknown_name_is_refused(
    name: str, todo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", name]) == 2
    told = capsys.readouterr()
    assert todo in told.err
    assert told.out == ""
