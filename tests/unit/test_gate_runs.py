"""Scripts that run gate and search for real: they go on after an interruption, and count."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts import bisect_culprits, simulate_pairs
from scripts.gate_runs import arguments, compare_all
from scripts.planted_slowdown import git
from scripts.simulate_pairs import Case, Simulated

CASE = Case("live", 1.0, "gauss")


def test_interrupted_comparisons_go_on_with_the_first_one_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[str] = []

    def tool(folder: Path, steps: int) -> tuple[str, int | None]:
        called.append(folder.name)
        if len(called) == 2:
            raise KeyboardInterrupt
        return ("pass", 3) if folder.name.endswith("equal") else ("regression", 5)

    words = ["--work", str(tmp_path / "work"), "--equal", "2", "--planted", "1"]
    with pytest.raises(KeyboardInterrupt):
        compare_all(arguments("").parse_args(words), {"gpurun": tool})
    compare_all(arguments("").parse_args(words), {"gpurun": tool})
    equal, planted = "compute-equal", "compute-planted"
    assert called == [equal, planted, planted, equal]
    *_, whole = capsys.readouterr().out.partition("\n\n")
    assert whole.count("gpurun, compute, an equal tree: pass after 3 pairs") == 2
    assert "gpurun, compute, a slower tree: regression after 5 pairs" in whole
    assert "| gpurun | 2/2 (34–100 %) | 0/2 (0–66 %) |" in whole


def test_a_search_is_right_where_it_names_the_planted_commit_and_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    searched: list[str] = []

    def gpurun(folder: Path, words: Sequence[str], seconds: float) -> Any:
        searched.append(folder.name)
        hashes = git(folder, "rev-list", "--reverse", "main").split()
        depths = [git(folder, "show", f"{one}:work.py").splitlines()[0] for one in hashes]
        culprit = hashes[depths.index("DEPTH = 25") - (len(searched) - 1)]
        found = {"verdict": "found", "culprit": culprit, "pairs": [1] * 7}
        return subprocess.CompletedProcess(words, 0, json.dumps(found), "")

    monkeypatch.setattr(bisect_culprits, "gpurun_in", gpurun)
    for searches in ("1", "2"):
        words = ["", "--work", str(tmp_path), "--commits", "3", "--searches", searches]
        monkeypatch.setattr("sys.argv", words)
        assert bisect_culprits.main() == 0
    assert searched == ["compute-3-0", "compute-3-1"]
    said = capsys.readouterr().out
    assert "named: 1/1 (21–100 %)\nwrong: 0/1 (0–79 %)" in said
    assert "named: 1/2 (9–91 %)\nwrong: 1/2 (9–91 %)" in said


def test_what_was_simulated_is_not_simulated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "cells.jsonl"
    first = Simulated(20, kept).cell("gain", CASE, 3.0)
    assert first["claimed"] == first["covered"] == 20
    monkeypatch.setattr(simulate_pairs, "simulate", None)
    assert Simulated(20, kept).cell("gain", CASE, 3.0) == first
