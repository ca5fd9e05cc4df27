"""`gpurun --scale` as a user types it: real ranks over gloo, and what does not go well."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from gpurun.pairs.side import tree_below
from scripts.generate_schemas import all_schemas
from tests.integration.launched import (
    DEADLINE_SECONDS,
    ORPHAN_SECONDS,
    alive,
    assert_nothing_outlives_a_kill,
    pids,
    start,
    wait_for,
)

pytestmark = pytest.mark.forked

Gpurun = Callable[..., "subprocess.CompletedProcess[bytes]"]

DISTRIBUTED = """
import os, pathlib, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if size == 3 and rank == 1:
    raise MemoryError  # as early as that, the test is over soon
import torch, torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
pathlib.Path(f"written-{rank}").touch()
for step in range(100_000):
    time.sleep(0.08 if size == 1 else 0.01)  # two are faster, whatever disturbs them
    loss = model(torch.randn(8, 64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FOR_ONE = """
import os, time
import torch
from torch.utils.data import DataLoader, TensorDataset

os.makedirs("out")
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10_000):
    for (x,) in DataLoader(TensorDataset(torch.randn(64, 64)), 8, shuffle=True):
        time.sleep(0.01 if "RANK" in os.environ else 0.08)  # two are faster, as above
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "out/last.pt")
    os.rename("out/last.pt", f"out/{epoch}.pt")
"""

SILENT = """
import os, pathlib, subprocess, sys, time
pathlib.Path("started").mkdir(exist_ok=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(os.environ["PIDS"], f"{os.getpid()}.pid").touch()
while True:
    time.sleep(600)
"""


@pytest.mark.slow  # quick twin: unit/test_scaling_launch_rounds.py
def test_counts_are_compared_and_one_without_memory_is_told(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text(DISTRIBUTED)
    flags = ("--oversubscribe", "--rounds", "1", "--steps", "20", "--plot", "s.png")
    done = gpurun("--scale", "1,2,3", *flags, "--json", "s.json", "train.py")
    told = done.stderr.decode()
    assert done.returncode == 0, told
    body = json.loads((tmp_path / "s.json").read_text())
    jsonschema.validate(body, all_schemas()["scaling@1.json"])
    one, two, three = body["points"]
    assert body["mode"] == "weak"
    assert body["distributed"] == "train.py uses init_process_group"
    assert one["efficiency"] == 1.0
    assert two["samples_per_second"] > one["samples_per_second"] > 0
    assert two["speedup"] == pytest.approx(2 * two["efficiency"])
    assert two["imbalance"] is not None
    assert two["exposed_communication_percent"] is not None
    assert three["error"] == "out of memory on rank 1"
    assert three["samples_per_second"] is None
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".gpurun", "s.json", "s.png", "train.py",
    ]  # fmt: skip
    assert told.splitlines()[-1].startswith("verdict=ok exit=0 gpus=2 efficiency=")


@pytest.mark.slow  # quick twin: the ranks of test_hidden_ddp.py
def test_a_script_for_one_device_is_measured_on_two(tmp_path: Path, gpurun: Gpurun) -> None:
    """Both ranks make the same folder and move the same file: each sees its own."""
    (tmp_path / "train.py").write_text(FOR_ONE)
    flags = ("--rounds", "1", "--steps", "20", "--json", "s.json")
    done = gpurun("--scale", "1,2", *flags, "train.py")
    assert done.returncode == 0, done.stderr.decode()
    body = json.loads((tmp_path / "s.json").read_text())
    one, two = body["points"]
    assert body["distributed"] is None
    assert two["samples_per_second"] > one["samples_per_second"] > 0
    assert two["exposed_communication_percent"] is not None
    assert sorted(p.name for p in tmp_path.iterdir()) == [".gpurun", "s.json", "train.py"]


EXCHANGING = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(1200, 1200) for _ in range(3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for epoch in range(10_000):
    for (x,) in DataLoader(TensorDataset(torch.randn(64, 1200)), 2):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_where_the_exchange_holds_it_up_other_ways_are_tried(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    """17 MB of gradients for two samples: they take longer than the step."""
    (tmp_path / "train.py").write_text(EXCHANGING)
    flags = ("--rounds", "1", "--steps", "25", "--json", "s.json")
    done = gpurun("--scale", "1,2", "--ddp-options", "bucket_cap_mb=30", *flags, "train.py")
    assert done.returncode == 0, done.stderr.decode()
    body = json.loads((tmp_path / "s.json").read_text())
    assert "multi_gpu_comm" in {finding["type"] for finding in body["findings"]}
    tried = {way["ddp_options"]: way for way in body["tried"] if not way["settings"]}
    view = "gradient_as_bucket_view"
    assert set(tried) == {view, f"{view},static_graph", f"bucket_cap_mb=100,{view}"}
    assert all(way["speedup"] or way["error"] for way in tried.values())
    assert tried[f"{view},static_graph"]["speedup"] > 0
    assert f"tried: --ddp-options {view},static_graph: ×" in done.stderr.decode()
    (fewer,) = (way for way in body["tried"] if way["settings"])
    assert (fewer["settings"], fewer["ddp_options"]) == ({"accumulation": 2}, "bucket_cap_mb=30")
    assert fewer["speedup"] > 0
    assert (fewer["effect"], fewer["faster"]) == ("training", False)
    assert "tried: accumulation 2, --ddp-options bucket_cap_mb=30: ×" in done.stderr.decode()
    specs = [
        json.loads(p.read_text()) for p in tmp_path.glob(".gpurun/runs/*/launches/*/spec.json")
    ]
    asked = [{o["knob"] for o in s["exchange"]["options"]} for s in specs if s["parallel"]]
    assert {"bucket_cap_mb"} in asked, "the user's own is the usual way"
    assert {view, "static_graph"} in asked


def test_a_script_that_fails_by_itself_is_shown_and_ends_it(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('no data')")
    done = gpurun("--scale", "1,2", "--json", "s.json", "train.py")
    assert done.returncode == 5
    assert b"the script fails with 1 rank: ValueError: no data" in done.stderr
    points = json.loads((tmp_path / "s.json").read_text())["points"]
    assert [point["samples_per_second"] for point in points] == [None, None]


def test_ranks_that_show_no_sign_of_life_are_given_up(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "gpurun.toml").write_text("[optimize]\npatience = '1s'\n")
    (tmp_path / "train.py").write_text("import time; time.sleep(600)")
    done = gpurun("--scale", "1,2", "--quiet", "train.py")
    assert done.returncode == 5
    assert b"hangs: given up after 1 s without a sign of life" in done.stderr


def test_nothing_outlives_a_launcher_that_is_killed(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(SILENT)
    seen = tmp_path / "out"
    seen.mkdir()
    words = ("--scale", "2,3", "--oversubscribe", "--trials-in-place", "train.py")
    launcher = start(tmp_path, {**clean_environment, "PIDS": str(seen)}, *words)
    assert len(pids(seen, 2)) == 2
    assert_nothing_outlives_a_kill(launcher, tree_below(launcher.pid))


def test_an_interruption_keeps_what_was_measured(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(SILENT)
    environment = {**clean_environment, "PIDS": str(tmp_path)}
    words = ("--scale", "1,2", "--trials-in-place", "--json", "s.json", "train.py")
    launcher = start(tmp_path, environment, *words)
    assert pids(tmp_path, 1)
    below = tree_below(launcher.pid)  # the names are those in the box
    launcher.send_signal(signal.SIGINT)
    _, told = launcher.communicate(timeout=DEADLINE_SECONDS)
    assert launcher.returncode == 130, told
    assert told.splitlines()[-1].startswith(b"verdict=interrupted exit=130")
    body = json.loads((tmp_path / "s.json").read_text())
    assert body["points"][0]["error"] == "not measured: interrupted"
    assert wait_for(lambda: not any(alive(pid) for pid in below), ORPHAN_SECONDS)
