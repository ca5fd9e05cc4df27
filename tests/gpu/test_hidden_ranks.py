"""Ranks of `--ddp` that share one GPU train what one process trains, and draw as they should."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.run_events import run_in

pytestmark = pytest.mark.gpu

RANKS = ("--ddp", "--nproc-per-node", "2", "--oversubscribe")
SCRIPT = """
import json
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
rows = torch.randn(203, 10)
drawn = {"before": torch.rand(2, device="cuda").tolist()}
net = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
for epoch in range(4):
    if epoch == 2:
        net[0].requires_grad_(False)
    for (x,) in DataLoader(TensorDataset(rows), 32, shuffle=True):
        x = x.cuda()
        optimizer.zero_grad()
        (net(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
        optimizer.step()
        drawn[f"inside {epoch}"] = torch.rand(2, device="cuda").tolist()
    drawn[f"outside {epoch}"] = torch.rand(2, device="cuda").tolist()
weights = [p.double().sum().item() for p in net.parameters()]
print("found", json.dumps({"drawn": drawn, "weights": weights}), flush=True)
"""


LOSSES = """
import json
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
rows, labels = torch.randn(203, 10), torch.randint(0, 4, (203,))
losses = {
    "soft": lambda out, y, x: F.cross_entropy(out, torch.softmax(x[:, :4], 1)),
    "a sum by its length": lambda out, y, x: F.cross_entropy(out, y, reduction="sum") / len(x),
    "two means": lambda out, y, x: F.cross_entropy(out, y) + 0.01 * out.pow(2).mean(),
    "plain": lambda out, y, x: F.cross_entropy(out, y),
}
ends = {}
for name, loss_of in losses.items():
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    net.cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler()
    for epoch in range(4):
        for x, y in DataLoader(TensorDataset(rows, labels), 32, shuffle=True):
            x, y = x.cuda(), y.cuda()
            optimizer.zero_grad()
            penalty = 1e-3 * (net[0].weight @ net[0].weight.T).pow(2).sum()  # before the call
            scaler.scale(loss_of(net(x), y, x) + penalty).backward()
            scaler.step(optimizer)
            scaler.update()
    ends[name] = [p.double().sum().item() for p in net.parameters()]
print("found", json.dumps(ends), flush=True)
"""


def found(text: str) -> Any:
    told = re.search(r"^found (.*)$", text, re.MULTILINE)
    assert told is not None, text
    return json.loads(told[1])


def test_ranks_on_one_gpu_train_alike_and_draw_alike_outside_steps(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT)
    alone = gpurun("train.py", cwd=folders[0])
    ranks = gpurun(*RANKS, "train.py", cwd=folders[1])
    assert (alone.returncode, ranks.returncode) == (0, 0), ranks.stderr.decode()
    one, first = found(alone.stdout.decode()), found(ranks.stdout.decode())
    (log,) = run_in(folders[1]).glob("ranks/**/1/stdout.log")
    second = found(log.read_text())
    assert first["weights"] == pytest.approx(second["weights"], rel=1e-6)
    assert first["weights"] == pytest.approx(one["weights"], rel=1e-3, abs=1e-3)
    for name, value in first["drawn"].items():
        assert (second["drawn"][name] != value) == name.startswith("inside"), name


def test_each_loss_counts_on_a_gpu_as_in_the_whole_batch(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text(LOSSES)
    alone = gpurun("train.py", cwd=tmp_path)
    ranks = gpurun(*RANKS, "train.py", cwd=tmp_path)
    assert (alone.returncode, ranks.returncode) == (0, 0), ranks.stderr.decode()
    one, two = found(alone.stdout.decode()), found(ranks.stdout.decode())
    for name, sums in one.items():
        assert two[name] == pytest.approx(sums, rel=1e-3, abs=1e-3), name


def test_a_gpu_is_not_shared_unasked(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = gpurun("--ddp", "--nproc-per-node", "64", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert b"64 ranks were asked for, and there" in done.stderr
