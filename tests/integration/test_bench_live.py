"""`gpurun bench --compare` by live pairs in a small repository whose script trains for long."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpurun.records.bench.comparison import Comparison
from gpurun.records.codec import from_json
from tests.forked import NURSERY, REPOSITORY, as_text
from tests.repositories import commit, git, new_repository

SCRIPT = """
import torch, work
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
{before}
while True:
    work.prepare()
    loss = model(torch.randn(8, 4)).square().mean() * work.SCALE
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None
"""
PORT = """
import socket
alone = socket.socket()
alone.bind(("127.0.0.1", {port}))
"""
WORK = "import time\nSCALE = {scale}\ndef prepare():\n    time.sleep({sleep})\n"
RARE = """
import time
SCALE, step = 1.0, 0
def prepare():
    global step
    step += 1
    time.sleep(0.204 if step % 40 == 0 else 0.004)
"""
FINE = WORK.format(sleep=0.004, scale=1.0)


def project(folder: Path, before: str = "") -> Path:
    made = new_repository(folder)
    files = {"train.py": SCRIPT.format(before=before), "work.py": FINE}
    commit(made, {**files, ".gitignore": ".gpurun/\n__pycache__/\n"})
    git(made, "checkout", "-q", "-b", "branch")
    return made


def compared(folder: Path, *words: str) -> tuple[int, Comparison, str]:
    """The exit code, the document and the output of a comparison with main."""
    place = folder.parent / "compared.json"
    flags = ("--compare", "main", "--json", str(place), "--metrics", "throughput", *words)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "GITHUB_STEP_SUMMARY": ""}
    done = as_text(NURSERY.launch(("bench", *flags, "train.py"), folder, environment))
    assert place.exists(), done.stderr
    return done.returncode, from_json(Comparison, json.loads(place.read_text())), done.stderr


def test_a_slowed_tree_is_a_regression_by_live_pairs(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    culprit = commit(folder, {"work.py": WORK.format(sleep=0.009, scale=1.0)})
    code, found, said = compared(folder, "--threshold", "30%")
    assert (code, found.verdict) == (1, "regression"), said
    assert found.method is not None
    assert found.method.live, said
    assert found.likely_culprit_commit == culprit
    assert found.slowdown is not None
    assert 0.3 < found.slowdown < 0.7
    assert len(found.baseline.launches) == len(found.current.launches) == found.pairs
    alone = [s for launch in found.current.launches if (s := launch.measured_seconds) is not None]
    assert len(alone) == found.pairs
    assert min(alone) > 0
    assert len(git(folder, "worktree", "list").splitlines()) == 1


@pytest.mark.slow  # quick twin: unit/test_pairs_turn_ratio.py
def test_a_cost_at_every_fortieth_step_is_a_regression(tmp_path: Path) -> None:
    """Most turns of a few steps do not see it."""
    folder = project(tmp_path / "project")
    commit(folder, {"work.py": RARE})
    code, found, said = compared(folder, "--threshold", "30%")
    assert (code, found.verdict) == (1, "regression"), said


@pytest.mark.slow  # quick twin: test_bench_training.py
def test_another_training_at_the_same_speed_is_seen_by_live_pairs(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    commit(folder, {"work.py": WORK.format(sleep=0.004, scale=1.1)})
    code, found, said = compared(folder, "--threshold", "90%", "--fail-on-training-change")
    assert (code, found.training_differs) == (6, True), said
    assert found.method is not None
    assert found.method.live
    assert found.training is not None
    assert found.training.launches == (found.pairs + 1, found.pairs + 1)


@pytest.mark.slow  # quick twin: unit/test_bench_live.py
def test_a_script_that_needs_a_port_for_itself_is_launched_in_turn(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = project(tmp_path / "project", PORT.format(port=port))
    commit(folder, {"notes.txt": "1"})
    code, found, said = compared(folder, "--threshold", "90%", "--steps", "60")
    assert code == 0, said
    assert found.method is not None
    assert not found.method.live
    assert "Address already in use" in (found.method.why_in_turn or "")
    assert "launches one after the other, not live pairs: a live pair failed" in said


@contextmanager
def compared_beyond_a_pair(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A comparison under way, whose first pair was told with the speed of both sides."""
    with subprocess.Popen(
        [sys.executable, "-m", "gpurun", "bench", "--compare", "main", "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "GITHUB_STEP_SUMMARY": ""},
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        line = ""
        while "pair 1:" not in line:
            line = running.stderr.readline()
            assert line, "it ended before its first pair"
        assert "/s (" in line
        yield running


@pytest.mark.slow  # quick twin: the one of test_bench_compare.py
def test_an_interrupted_live_pair_leaves_no_process_and_no_worktree(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    commit(folder, {"notes.txt": "1"})
    with compared_beyond_a_pair(folder) as running:
        assert running.stderr is not None
        while len(list(folder.glob(".gpurun/runs/*/launches/*/control/turn-orders"))) < 4:
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        lines = running.stderr.read().splitlines()
    assert running.returncode == 128 + signal.SIGTERM, lines
    assert lines[-1].startswith("verdict=interrupted")
    assert len(git(folder, "worktree", "list").splitlines()) == 1
    assert not [path for path in Path("/proc").glob("[0-9]*/cwd") if within(path, folder)]


@pytest.mark.slow  # quick twin: the one of the unit tests of live pairs
def test_editing_the_tree_during_a_comparison_ends_it_by_the_name_of_the_file(
    tmp_path: Path,
) -> None:
    folder = project(tmp_path / "project")
    commit(folder, {"notes.txt": "1"})
    with compared_beyond_a_pair(folder) as running:
        assert running.stderr is not None
        (folder / "work.py").write_text(WORK.format(sleep=0.02, scale=1.0))
        said = running.stderr.read()
    assert running.returncode == 5, said
    assert f"{folder}/work.py was changed while it was compared" in said


def within(link: Path, folder: Path) -> bool:
    """Whether a process works in this folder."""
    try:
        return link.readlink().is_relative_to(folder)
    except OSError:
        return False
