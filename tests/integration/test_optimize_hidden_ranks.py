"""`--optimize --ddp`: a script for one device is tuned on the ranks that it will train on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.tunings import configure, report_of, training

pytestmark = pytest.mark.forked

Gpurun = Callable[..., "subprocess.CompletedProcess[bytes]"]

RANKS = ("--ddp", "--nproc-per-node", "2")

SLOW_LOADER = """
import os, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 960
    def __getitem__(self, index):
        time.sleep(0.006)
        return torch.full((8,), index / 960), torch.tensor([float(index % 2)])

if __name__ == "__main__":
    torch.manual_seed(0)
    os.makedirs("out")
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for x, y in DataLoader(Slow(), 16, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
        time.sleep(0.01)  # which no setting shortens: few pairs show the gain precisely
    torch.save(net.state_dict(), "out/last.pt")
    print("trained", flush=True)
"""

BY_HAND = """
import torch
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for step in range(200):
    optimizer.zero_grad()
    net(torch.randn(16, 8)).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_script_for_one_device_is_tuned_on_two_ranks_and_trains_so(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    (tmp_path / "train.py").write_text(SLOW_LOADER)
    limits = ("--budget", "12m", "--max-trials", "3", "--allow", "pipeline")
    done = gpurun("--optimize", *RANKS, *limits, "--json", "t.json", "train.py", timeout=900)
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads((tmp_path / "t.json").read_text())
    assert report["verdict"] == "faster", done.stderr.decode()
    assert report["speedup"] > 1.3
    assert report["chosen"]["knobs"]["loader_workers"] > 0
    assert done.stdout == b"trained\n", "rank 0 prints, once"
    assert {p.name for p in tmp_path.iterdir()} == {".gpurun", "out", "t.json", "train.py"}
    folder = max(tmp_path.glob(".gpurun/runs/*/trials")).parent
    for spec in folder.glob("trials/*/spec.json"):
        assert json.loads(spec.read_text())["parallel"]["share"] == "global"

    assert {"--tuned", "--ddp"} <= set(report["invocation"])
    (tmp_path / "out" / "last.pt").unlink()
    (tmp_path / "out").rmdir()
    tuned = gpurun(*report["invocation"][1:])
    assert (tuned.returncode, tuned.stdout) == (0, b"trained\n"), tuned.stderr.decode()
    alone = gpurun("--tuned", "--nproc-per-node", "2", "train.py")
    assert alone.returncode == 2, "tuned for ranks that the script knows nothing of"


def test_what_no_rank_can_share_out_is_named(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text(BY_HAND)
    done = gpurun("--optimize", "--tune-only", *RANKS, "train.py")
    assert done.returncode == 2
    said = done.stderr.decode()
    assert "no DataLoader feeds the training (train.py:7)" in said
    assert "verdict=refused exit=2" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_ranks_are_tuned_together(tmp_path: Path, gpurun: Gpurun) -> None:
    source = training(2000).replace(
        "model = ", "torch.distributed.init_process_group('gloo')\nmodel = "
    )
    parallel = "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))"
    (tmp_path / "train.py").write_text(source.replace("model = torch.nn.Linear(8, 2)", parallel))
    configure(tmp_path, "allow = ['pipeline']\nmax_trials = 2\nbudget = '10m'")
    done = gpurun("--optimize", "--tune-only", "--nproc-per-node", "2", "train.py", timeout=800)
    report = report_of(tmp_path)
    trial = report["trials"][0]
    assert trial["status"] == "stopped", done.stderr.decode()
    assert trial["samples_per_second"] > 0
    assert done.returncode in (0, 3)
