"""`gpurun bench bisect` in a small repository: killed, taken up again, and right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.records.bench.bisection import BisectionReport
from gpurun.records.codec import from_json
from tests.forked import NURSERY, REPOSITORY
from tests.repositories import commit, git, new_repository

SCRIPT = """
import torch, work
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
for (x,) in DataLoader(TensorDataset(torch.zeros(400, 4)), batch_size=8):
    work.prepare()
    model(x).sum().backward()
"""
WORK = "import time\n# {number}\ndef prepare():\n    time.sleep({sleep})\n"
BROKEN = "raise ImportError('half a change')\n"


def command(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gpurun", "bench", "bisect", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stderr=subprocess.PIPE,
        text=True,
    )


def worktrees(folder: Path) -> int:
    return len(git(folder, "worktree", "list").splitlines())


@pytest.mark.slow  # quick twin: unit/test_bench_bisect.py
def test_a_search_that_was_killed_goes_on_and_names_the_culprit(tmp_path: Path) -> None:
    folder = new_repository(tmp_path / "project")
    fine = WORK.format(number=0, sleep=0.02)
    files = {"train.py": SCRIPT, "work.py": fine, ".gitignore": ".gpurun/\n__pycache__/\n"}
    good = commit(folder, files, "Start")
    for number in (1, 2, 3):
        text = BROKEN if number == 2 else WORK.format(number=number, sleep=0.02)
        commit(folder, {"work.py": text}, f"Change {number}")
    broken = git(folder, "rev-parse", "HEAD~1")
    culprit = commit(folder, {"work.py": WORK.format(number=4, sleep=0.15)}, "Look twice")
    words = (f"{good}..main", "--steps", "12", "--json", str(tmp_path / "found.json"), "train.py")

    with command(folder, *words) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("gpurun: pair 1:"):
                break
        running.send_signal(signal.SIGKILL)
        running.stderr.read()
    assert worktrees(folder) > 1

    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = NURSERY.launch(("bench", "bisect", *words), folder, environment)
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 0, lines
    assert "gpurun: continuing after 1 pair (--fresh starts again)" in lines
    found = from_json(BisectionReport, json.loads((tmp_path / "found.json").read_text()))
    assert found.culprit == culprit
    assert found.slowdown is not None
    assert found.slowdown > 0.3
    assert [(one.commit, one.skipped) for one in found.skipped] == [
        (broken, "ImportError: half a change")
    ]
    assert lines[-1].startswith(f"verdict=found exit=0 culprit={culprit} slowdown=0.")
    assert worktrees(folder) == 1
    kept = {path.stem for path in (folder / ".gpurun" / "benchmarks").glob("*.json")}
    assert all(set(pair.records) <= kept for pair in found.pairs)
