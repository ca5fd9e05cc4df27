"""`gpurun bench --compare` in a small repository: slower, broken, interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpurun.records.bench.comparison import Comparison
from gpurun.records.codec import from_json
from tests.forked import NURSERY, REPOSITORY, as_text
from tests.repositories import commit, git, new_repository, state

SCRIPT = """
import torch, work
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
for (x,) in DataLoader(TensorDataset(torch.zeros(400, 4)), batch_size=work.BATCH):
    work.prepare()
    model(x).sum().backward()
open("written.txt", "a").write("by a launch")
"""
WORK = "import time\nBATCH = 8\ndef prepare():\n    time.sleep({sleep})\n"
TABLE = '[bench]\nscript = "train.py"\nsteps = 25\nmetrics = ["throughput"]\n'
EASY = ("--threshold", "30%")
"""Decided by the first look, of four pairs, unless the machine is disturbed."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = new_repository(tmp_path / "project")
    files = {"train.py": SCRIPT, "work.py": WORK.format(sleep=0.02), "gpurun.toml": TABLE}
    commit(made, {**files, ".gitignore": ".gpurun/\n"})
    return made


def bench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `gpurun bench` as a pipeline does."""
    summary = str(folder.parent / "summary.md")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "GITHUB_STEP_SUMMARY": summary}
    return as_text(NURSERY.launch(("bench", *words), folder, environment))


def compared(folder: Path, *words: str) -> tuple[int, Comparison, list[str]]:
    """The exit code, the document and the lines of a comparison with main; nothing is left."""
    before, document = state_without_records(folder), folder.parent / "compared.json"
    done = bench(folder, "--compare", "main", "--json", str(document), *words)
    lines = done.stderr.splitlines()
    assert document.exists(), done.stderr
    found = from_json(Comparison, json.loads(document.read_text()))
    assert lines[-1].startswith(f"verdict={found.verdict} exit={done.returncode}"), done.stderr
    assert state_without_records(folder) == before
    assert len(git(folder, "worktree", "list").splitlines()) == 1
    assert not any((folder / ".gpurun" / "worktrees").glob("*/*/train.py"))
    return done.returncode, found, lines


def state_without_records(folder: Path) -> dict[str, Any]:
    return {
        name: value
        for name, value in state(folder).items()
        if not name.startswith((".git/", ".gpurun", "__pycache__"))
    }


@pytest.mark.slow  # quick twin: the one of test_bench_live.py
def test_a_slowed_tree_is_a_regression_of_its_commit(folder: Path) -> None:
    git(folder, "checkout", "-q", "-b", "slower")
    culprit = commit(folder, {"work.py": WORK.format(sleep=0.05)})
    code, found, lines = compared(folder, *EASY)
    assert (code, found.verdict, found.regression_detected) == (1, "regression", True)
    assert 2 <= found.pairs <= 16
    assert found.slowdown is not None
    assert found.performance_delta == -100 * found.slowdown
    assert found.baseline.commit == git(folder, "rev-parse", "main")
    assert len(found.baseline.launches) == len(found.current.launches) == found.pairs
    kept = folder / ".gpurun" / "benchmarks"
    assert {found.baseline.record, found.current.record} <= {p.stem for p in kept.rglob("*.json")}
    assert found.likely_culprit_commit == culprit
    interval = found.slowdown_confidence_interval
    assert interval is not None
    assert found.threshold == 0.3
    assert 0.01 < interval[0] < found.slowdown < interval[1]
    assert interval[1] > found.threshold
    assert any(line.startswith("gpurun: REGRESSION train: throughput") for line in lines)
    assert "### gpurun bench: REGRESSION train" in (folder.parent / "summary.md").read_text()


def test_a_benchmark_that_crashes_on_one_side_is_no_regression(folder: Path) -> None:
    git(folder, "checkout", "-q", "-b", "broken")
    commit(folder, {"work.py": "raise ValueError('no such layer')\n"})
    code, found, lines = compared(folder)
    assert (code, found.verdict, found.regression_detected) == (5, "failed", False)
    assert found.error is not None
    assert "failed on the current side: ValueError: no such layer" in found.error
    assert "gpurun: current: ValueError: no such layer" in lines
    assert found.current.launches[0].status == "failed"
    assert found.baseline.record is None


def test_an_interrupted_comparison_leaves_no_worktree(folder: Path) -> None:
    commit(folder, {"train.py": "import time\ntime.sleep(600)\n"})
    commit(folder, {"notes.txt": "1"})
    before = state_without_records(folder)
    with subprocess.Popen(
        [sys.executable, "-m", "gpurun", "bench", "--compare", "main"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        while "first launch" not in running.stderr.readline():
            pass
        running.send_signal(signal.SIGTERM)
        lines = running.stderr.read().splitlines()
    assert running.returncode == 128 + signal.SIGTERM
    assert lines[0] == "gpurun: INTERRUPTED train: interrupted after 0 pairs"
    assert lines[-1] == f"verdict=interrupted exit={running.returncode} pairs=0"
    assert len(git(folder, "worktree", "list").splitlines()) == 1
    assert state_without_records(folder) == before
