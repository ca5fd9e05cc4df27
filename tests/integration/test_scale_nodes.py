"""`gpurun --scale` on several nodes: launchers in folders of their own, which meet here."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.pairs.side import tree_below
from tests.integration.launched import (
    DEADLINE_SECONDS,
    ORPHAN_SECONDS,
    alive,
    start,
    wait_for,
)
from tests.integration.test_launch_nodes import free_port

TRAINING = """
import os, pathlib, time
import torch
from torch.utils.data import DataLoader, TensorDataset

pathlib.Path("written.txt").touch()
if "RANK" in os.environ and "MARKS" in os.environ:
    pathlib.Path(os.environ["MARKS"], os.environ["RANK"]).touch()
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10_000):
    for (x,) in DataLoader(TensorDataset(torch.randn(64, 64)), 8, shuffle=True):
        time.sleep(float(os.environ.get("PACE", "0.01")) if "RANK" in os.environ else 0.08)
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

FAILING = TRAINING.replace(
    "for epoch",
    """if os.environ.get("RANK") == "1":
    raise ValueError("no data here")
for epoch""",
)

Launcher = subprocess.Popen[bytes]
StartBoth = Callable[..., list[Launcher]]


@pytest.fixture
def both(tmp_path: Path, clean_environment: dict[str, str]) -> StartBoth:
    """Start the launchers of two nodes, each in a folder with the script."""

    def started(
        *words: str,
        scripts: tuple[str, str] = (TRAINING, TRAINING),
        conf: str = "join_timeout=300",
        **variables: str,
    ) -> list[Launcher]:
        meet = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}")
        flags = ("--nnodes", "2", "--nproc-per-node", "1", *meet)
        launchers = []
        for node, script in enumerate(scripts):
            folder = tmp_path / f"node{node}"
            folder.mkdir()
            (folder / "train.py").write_text(script)
            # which of them keeps the store is said, so that the tests know the first one
            first = ("--rdzv-conf", f"is_host={int(node == 0)},{conf}")
            environment = {**clean_environment, **variables}
            typed = ("--scale", "1,2", "--rounds", "1", *flags, *first, *words, "train.py")
            launchers.append(start(folder, environment, *typed))
        return launchers

    return started


def finished(launchers: list[Launcher]) -> list[tuple[int, str]]:
    """Exit code and messages of each."""
    said = [one.communicate(timeout=2 * DEADLINE_SECONDS)[1].decode() for one in launchers]
    return [(one.returncode, text) for one, text in zip(launchers, said, strict=True)]


@pytest.mark.slow  # quick twin: unit/test_scaling_nodes.py
def test_a_script_for_one_device_is_measured_on_two_nodes(both: StartBoth, tmp_path: Path) -> None:
    (code, told), (other_code, other_told) = finished(both("--steps", "50", "--json", "s.json"))
    assert (code, other_code) == (0, 0), told + other_told
    body = json.loads((tmp_path / "node0" / "s.json").read_text())
    one, two = body["points"]
    assert body["nodes"] == 2
    assert two["samples_per_second"] > one["samples_per_second"] > 0
    assert two["exposed_communication_percent"] is not None
    assert told.splitlines()[-1].startswith("verdict=ok exit=0 gpus=2 efficiency=")
    assert other_told.splitlines()[-1] == "verdict=ok exit=0 node=1"
    # both nodes' ranks are in the record of the launch on both, as one training
    runs = tmp_path.glob("node*/.gpurun/runs/*/launches/*-of-2/result.json")
    assert [json.loads(path.read_text())["ranks"] for path in runs] == [2, 2]
    # launches are isolated on both
    left = sorted(p.name for p in (tmp_path / "node1").iterdir())
    assert left == [".gpurun", "train.py"]
    assert not (tmp_path / "node0" / "written.txt").exists()


@pytest.mark.slow  # quick twin: the interruption of test_scale.py
def test_an_interruption_ends_all_nodes_and_their_ranks(both: StartBoth, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    flags = ("--trials-in-place", "--steps", "10")
    launchers = both(*flags, MARKS=str(marks), PACE="600")
    assert wait_for(lambda: len(list(marks.iterdir())) == 2)
    below = [pid for launcher in launchers for pid in tree_below(launcher.pid)]
    assert len(below) >= 4
    launchers[0].send_signal(signal.SIGINT)
    (code, told), (other_code, other_told) = finished(launchers)
    assert (code, other_code) == (130, 130), told + other_told
    assert "gpurun: the first node: it was interrupted" in other_told
    assert other_told.splitlines()[-1] == "verdict=interrupted exit=130 node=1"
    assert wait_for(lambda: not any(map(alive, below)), ORPHAN_SECONDS)


@pytest.mark.slow  # quick twin: unit/test_scaling_nodes.py
def test_the_first_node_is_killed_and_the_other_ends(both: StartBoth, tmp_path: Path) -> None:
    launchers = both("--trials-in-place", "--steps", "10")
    assert wait_for(lambda: any((tmp_path / "node1").glob(".gpurun/runs/*/launches/*")))
    launchers[0].kill()
    launchers[0].communicate()
    _, (code, told) = finished(launchers)
    assert code == 1, told
    assert "gpurun: the node that keeps the rendezvous is gone: " in told


@pytest.mark.slow  # quick twin: unit/test_scaling_nodes.py
def test_another_node_is_killed_and_what_was_measured_is_kept(
    both: StartBoth, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    keep = "keep_alive_interval=1,keep_alive_max_attempt=5"
    launchers = both("--trials-in-place", "--steps", "10", conf=keep, MARKS=str(marks), PACE="600")
    assert wait_for(lambda: len(list(marks.iterdir())) == 2)
    launchers[1].kill()
    launchers[1].communicate()
    (code, told), _ = finished(launchers)
    assert code == 5, told
    gone = "is gone: its launcher no longer answers"
    assert any(gone in line for line in told.splitlines() if "2 ranks could not be" in line), told


@pytest.mark.slow  # quick twin: unit/test_scaling_nodes.py
def test_the_rank_that_fails_is_named_on_all_nodes_that_meet_by_node_ranks(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    port = str(free_port())
    launchers = []
    for node in range(2):
        folder = tmp_path / f"node{node}"
        folder.mkdir()
        (folder / "train.py").write_text(FAILING)
        meet = ("--node-rank", str(node), "--master-addr", "localhost", "--master-port", port)
        flags = ("--nnodes", "2", "--nproc-per-node", "1", *meet, "--steps", "20", "--rounds", "1")
        launchers.append(start(folder, clean_environment, "--scale", "1,2", *flags, "train.py"))
    ended = finished(launchers)
    assert [code for code, _ in ended] == [5, 5], ended
    for _, told in ended:
        assert "gpurun: round 1, 2 ranks: rank 1: ValueError: no data here" in told
    assert "gpurun: the script fails with 2 ranks: rank 1: ValueError: no data here" in ended[0][1]


def test_nodes_with_unlike_scripts_are_refused_by_name(both: StartBoth) -> None:
    scripts = (TRAINING, TRAINING + "# changed")
    (code, told), (other_code, other_told) = finished(both(scripts=scripts))
    here = socket.gethostname()
    said = f"gpurun: the script of node 1 ({here}) is not the same as on node 0 ({here})"
    assert said in told
    assert said in other_told
    assert (code, other_code) == (2, 2)
