"""Before ranks begin, trials verify that they train as one process does; else they are refused."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forked import NURSERY

pytestmark = pytest.mark.forked

Gpurun = Callable[..., "subprocess.CompletedProcess[bytes]"]
RANKS = ("--ddp", "--nproc-per-node", "2")

TRAIN = """
import sys
import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

BATCH = 32
kind = sys.argv[1]
torch.manual_seed(0)
x, y = torch.randn(203, 8), torch.randint(0, 4, (203,))
normed = nn.BatchNorm1d(16) if kind == "normed" else nn.Identity()
dropped = nn.Dropout(0.4) if kind == "dropped" else nn.Identity()
net = nn.Sequential(nn.Linear(8, 16), normed, nn.ReLU(), dropped, nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
each = {"reduction": "sum"}

@torch.compile
def compiled(out, b):
    return F.cross_entropy(out, b, **each) / 16

for epoch in range(2):
    for a, b in DataLoader(TensorDataset(x, y), BATCH, shuffle=True):
        optimizer.zero_grad()
        if kind == "noisy":
            a = a + torch.randn_like(a) * torch.rand(a.size(0), 1)
        if kind == "mixed up":
            share, order = np.random.beta(1, 1), torch.randperm(a.size(0))
            a = share * a + (1 - share) * a[order]
        if kind == "reshaped":
            a = a.reshape(BATCH, -1)
        if kind == "broken":
            raise ValueError("bad sample 17")
        out = net(a)
        loss = F.cross_entropy(out, b)
        if kind in ("summed", "normed", "dropped", "noisy"):
            loss = F.cross_entropy(out, b, **each) / 16
        if kind == "compiled":
            loss = compiled(out, b)
        if kind == "penalised":
            loss = loss + 0.01 * sum(p.pow(2).sum() for p in net.parameters())
        if kind == "penalised sum":
            loss = F.cross_entropy(out, b, **each) + 0.01 * net[0].weight.pow(2).sum()
        if kind == "padded":
            loss = F.cross_entropy(out, b, ignore_index=2)
        if kind == "normed in view":
            loss = (out - F.one_hot(b, 4)).view(len(x) // 203 * BATCH, -1).norm(dim=1).mean()
        loss.backward()
        optimizer.step()
print(*(p.double().sum().item() for p in net.parameters()))
"""


def weights(output: bytes) -> list[float]:
    return [float(word) for word in output.split()]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        pytest.param("summed", "sum", marks=pytest.mark.slow),  # quick twin: test_hidden_ddp.py
        pytest.param("plain", "mean", marks=pytest.mark.slow),
        pytest.param("penalised", "mean", marks=pytest.mark.slow),
        pytest.param("compiled", "sum", marks=pytest.mark.slow),
    ],
)
def test_ranks_train_what_one_process_trains_however_the_loss_reduces(
    script: Path,
    gpurun: Gpurun,
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    how: str,
) -> None:
    environment = {**os.environ, "TORCHDYNAMO_DISABLE": "1"}
    alone = NURSERY.run([str(script), kind], tmp_path_factory.mktemp("alone"), environment)
    done = gpurun(*RANKS, "train.py", kind, env={"TORCHDYNAMO_DISABLE": "1"})
    said = done.stderr.decode()
    assert done.returncode == 0, said
    assert f"the loss is a {how} over samples (verified in" in said
    assert weights(done.stdout) == pytest.approx(weights(alone.stdout), rel=1e-4, abs=1e-5)
    assert {path.name for path in script.parent.iterdir()} == {"train.py", ".gpurun"}


@pytest.mark.slow  # quick twin: unit/test_ddp_rank_verdict.py
@pytest.mark.parametrize(
    ("kind", "how"),
    [("normed", "sum"), ("dropped", "sum"), ("noisy", "sum"), ("mixed up", "mean")],
)
def test_what_is_drawn_or_normalised_disturbs_no_comparison(
    script: Path, gpurun: Gpurun, kind: str, how: str
) -> None:
    done = gpurun(*RANKS, "train.py", kind)
    said = done.stderr.decode()
    assert done.returncode == 0, said
    assert f"the loss is a {how} over samples" in said
    assert "not as one process" not in said


@pytest.mark.slow  # quick twin: unit/test_ddp_rank_verdict.py
def test_a_mean_over_what_differs_between_halves_is_told_with_its_figure(
    script: Path, gpurun: Gpurun
) -> None:
    done = gpurun(*RANKS, "train.py", "padded")
    assert done.returncode == 0, done.stderr.decode()
    assert b"ranks train as hand-written DistributedDataParallel does, not as one" in done.stderr


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("reshaped", "a share of a batch cannot be computed: rank "),
        pytest.param("penalised sum", "a sum over samples, and a part", marks=pytest.mark.slow),
        pytest.param("normed in view", "otherwise than one process", marks=pytest.mark.slow),
    ],
)
def test_what_ranks_cannot_train_is_refused_before_anything_trains(
    script: Path, gpurun: Gpurun, kind: str, words: str
) -> None:
    done = gpurun(*RANKS, "train.py", kind)
    said = done.stderr.decode()
    assert done.returncode == 2, said
    assert "verdict=refused exit=2" in said
    assert words in said
    assert done.stdout == b""
    assert "the script failed" not in said


@pytest.mark.slow  # quick twin: the flag in test_hidden_ddp.py
def test_what_the_user_says_settles_it(script: Path, gpurun: Gpurun) -> None:
    done = gpurun(*RANKS, "--loss-reduction", "sum", "train.py", "penalised sum")
    assert done.returncode == 0, done.stderr.decode()
    assert b"over samples" not in done.stderr


@pytest.mark.slow
def test_a_script_that_fails_by_itself_fails_as_its_own(script: Path, gpurun: Gpurun) -> None:
    done = gpurun(*RANKS, "train.py", "broken")
    said = done.stderr.decode()
    assert done.returncode == 1
    assert "ValueError: bad sample 17" in said
    assert "refused" not in said


BY_HAND = """
import os
import torch
from torch.distributed import init_process_group

net = torch.nn.Linear(4, 2)
if "RANK" in os.environ:
    init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""


def test_a_script_that_distributes_itself_on_ranks_is_refused_and_hears_how(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    (tmp_path / "train.py").write_text(BY_HAND)
    done = gpurun(*RANKS, "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert b"the script is distributed by itself" in done.stderr
    assert b"run gpurun --nproc-per-node N without --ddp" in done.stderr


SPAWNS = """
import torch
import torch.multiprocessing as mp

def train(rank):
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(8):
        net(torch.ones(4, 2)).mean().backward()
        optimizer.step()

if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
"""


def test_a_script_that_starts_training_processes_is_refused(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text(SPAWNS)
    done = gpurun(*RANKS, "train.py", cwd=tmp_path)
    said = done.stderr.decode()
    assert (done.returncode, "verdict=refused exit=2" in said) == (2, True), said
    assert "starts training processes of its own" in said


FROM_THE_START = """
import json, os, torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

how = json.load(open("config.json"))
try:
    how |= json.load(open("local.json"))
except FileNotFoundError:
    pass
how["reduction"] = os.environ.get("REDUCTION", how["reduction"])
torch.manual_seed(0)
x, y = torch.randn(64, 8), torch.randint(0, 4, (64,))
net = nn.Linear(8, 4)
first = net.weight.detach().clone()
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for a, b in DataLoader(TensorDataset(x, y), 16):
    loss = F.cross_entropy(net(a), b, reduction=how["reduction"])
    loss = loss + how["penalty"] * (net.weight - first).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow  # quick twin: unit/test_ddp_rank_verdict.py
def test_a_term_that_begins_at_zero_is_seen(script: Path, gpurun: Gpurun) -> None:
    script.write_text(FROM_THE_START)
    (script.parent / "config.json").write_text('{"reduction": "sum", "penalty": 1.0}')
    done = gpurun(*RANKS, "train.py")
    assert done.returncode == 2
    assert b"verdict=refused" in done.stderr
