"""Ranks of `--ddp` on two nodes, and what is left of them when something dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.pairs.side import tree_below
from tests.integration.launched import (
    DEADLINE_SECONDS,
    ORPHAN_SECONDS,
    alive,
    assert_nothing_outlives_a_kill,
    start,
    wait_for,
)
from tests.integration.test_launch_nodes import free_port

Gpurun = Callable[..., "subprocess.CompletedProcess[bytes]"]
Launcher = subprocess.Popen[bytes]
RANKS = ("--ddp", "--nproc-per-node", "2", "--loss-reduction", "mean")
"""Nothing here tests how the reduction is measured, which takes launches of its own."""
TRAINING = """
import os, pathlib, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

marks, epochs = os.environ.get("MARKS"), int(sys.argv[1])
torch.set_num_threads(1)
torch.manual_seed(5)
rows = torch.randn(96, 8)

class Rows(Dataset):
    def __len__(self):
        return len(rows)
    def __getitem__(self, index):
        return rows[index]

if __name__ == "__main__":
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(epochs):
        for x in DataLoader(Rows(), 16, shuffle=True, num_workers=1):
            optimizer.zero_grad()
            (net(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
            optimizer.step()
        if marks:
            pathlib.Path(marks, f"{os.environ['RANK']}.{os.getpid()}").touch()
    print("weights", *(f"{p.double().sum().item():.6f}" for p in net.parameters()), flush=True)
"""


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """A folder that is no rank's private layer: what tells that ranks train."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


def two_that_train(folder: Path, marks: Path, variables: dict[str, str]) -> Launcher:
    """The launcher of two ranks, each of which has trained for an epoch at least."""
    (folder / "train.py").write_text(TRAINING)
    words = (*RANKS, "--shared-writes", "train.py", "100000")
    launcher = start(folder, {**variables, "MARKS": str(marks)}, *words)
    assert wait_for(lambda: len({path.stem for path in marks.iterdir()}) >= 2)
    return launcher


def weights(words: list[str]) -> list[float]:
    assert words[0] == "weights"
    return [float(word) for word in words[1:]]


@pytest.mark.slow  # quick twin: test_hidden_ddp.py, test_launch_nodes.py
def test_ranks_of_two_nodes_train_what_one_process_trains(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    one = subprocess.run(
        [sys.executable, "train.py", "3"], cwd=tmp_path, env=clean_environment, capture_output=True
    )
    meeting = f"--rdzv-endpoint=localhost:{free_port()}"
    nodes = []
    for node in range(2):
        folder = tmp_path / f"node{node}"
        folder.mkdir()
        (folder / "train.py").write_text(TRAINING)
        flags = ("--ddp", "--nnodes=2", "--nproc-per-node=1", meeting, f"--node-rank={node}")
        nodes.append(start(folder, clean_environment, *flags, "train.py", "3"))
    ended = [node.communicate(timeout=DEADLINE_SECONDS) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], ended
    printed = [output.decode().split() for output, _ in ended if output]
    # rank 0 prints to its terminal; which node has it is settled where they meet
    expected = weights(one.stdout.decode().split())
    assert printed
    for words in printed:
        assert weights(words) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.slow  # quick twin: the one of test_launch_elastic.py
def test_a_killed_launcher_leaves_no_rank_and_no_loader_worker(
    tmp_path: Path, marks: Path, clean_environment: dict[str, str]
) -> None:
    launcher = two_that_train(tmp_path, marks, clean_environment)
    assert_nothing_outlives_a_kill(launcher, tree_below(launcher.pid))


def test_a_rank_that_is_killed_ends_the_training_by_its_name(
    tmp_path: Path, marks: Path, clean_environment: dict[str, str]
) -> None:
    launcher = two_that_train(tmp_path, marks, clean_environment)
    ranks = tree_below(launcher.pid)
    (second,) = {int(path.suffix[1:]) for path in marks.glob("1.*")}
    os.kill(second, signal.SIGKILL)
    _, told = launcher.communicate(timeout=DEADLINE_SECONDS)
    assert launcher.returncode == 137
    assert b"rank 1 failed first: signal SIGKILL" in told
    assert wait_for(lambda: not any(map(alive, ranks)), ORPHAN_SECONDS)


FAILS = """
import os, sys, torch
from torch.utils.data import DataLoader, TensorDataset
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
loader = DataLoader(TensorDataset(torch.randn(6400, 8), torch.randn(6400, 1)), 32)
for epoch in range(50):
    for i, (x, y) in enumerate(loader):
        if i == 15 and os.environ.get("RANK") == "1":
            exec(sys.argv[1])
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
"""
"""The second rank fails by itself, which ends the first one's exchange."""


@pytest.mark.slow  # quick twin: the rank that is killed, in this file
@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ("raise ValueError('bad sample 17')", 1, "exit code 1 (process"),
        ("sys.exit(7)", 7, "exit code 7"),
    ],
)
def test_a_rank_that_fails_is_the_cause_and_no_other_is(
    tmp_path: Path, gpurun: Gpurun, how: str, code: int, told: str
) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    done = gpurun(*RANKS, "fails.py", how, cwd=tmp_path)
    said = done.stderr.decode()
    assert done.returncode == code, said
    assert f"rank 1 failed first: {told}" in said
    assert ("ValueError: bad sample 17" in said) == (code == 1)
    assert "no longer train alike" not in said


CUT = """
class Cut(torch.nn.Linear):
    calls = 0
    def forward(self, x):
        self.calls += 1
        return super().forward(x[:, : 8 if self.calls < 12 else 3])

net = Cut(8, 1)
optimizer = """
"""A model whose 12th call fails, when it is wrapped."""


@pytest.mark.slow
def test_the_traceback_of_a_model_has_no_frame_of_its_wrapper(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    (tmp_path / "fails.py").write_text(FAILS.replace("\noptimizer = ", CUT))
    done = gpurun(*RANKS, "fails.py", "", cwd=tmp_path)
    said = done.stderr.decode()
    assert done.returncode == 1, said
    assert "mat1 and mat2 shapes cannot be multiplied (16x3 and 8x1)" in said
    assert "return super().forward(x" in said
    assert "parallel/" not in said
    assert "runtime/ddp/" not in said


@pytest.mark.slow  # quick twin: ranks that end, in test_hidden_ddp.py
def test_a_rank_for_which_the_others_wait_is_named(tmp_path: Path, gpurun: Gpurun) -> None:
    """It may have its reasons, and is not ended."""
    shorter = "import torch, gpurun.runtime.ddp.stall_report as report\n"
    shorter += "report.STILL_SECONDS = 3.0\n"
    (tmp_path / "fails.py").write_text(shorter + FAILS.replace("range(50)", "range(1)"))
    words = (*RANKS, "fails.py", "import time; time.sleep(9)")
    done = gpurun(*words, cwd=tmp_path)
    said = done.stderr.decode()
    assert done.returncode == 0, said
    line = 1 + (shorter + FAILS)[: (shorter + FAILS).index("exec(")].count("\n")
    waits = f"in step 16 for 3 s and more the others wait for rank 1, which is at fails.py:{line}"
    assert said.count(waits) == 1


@pytest.mark.slow  # quick twin: the counts of test_scale.py
def test_a_rank_without_memory_is_a_count_without_enough_memory(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    words = ("--scale", "1,2", "--rounds", "1", "--steps", "12", "--json", "scaling.json")
    done = gpurun(*words, "fails.py", "raise MemoryError", cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    one, two = json.loads((tmp_path / "scaling.json").read_text())["points"]
    assert (one["error"], two["error"]) == (None, "out of memory on rank 1")
