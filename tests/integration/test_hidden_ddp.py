"""A script for one device on two ranks: it trains the same model, or ends by name."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from zlib import crc32

import pytest

from tests.forked import NURSERY
from tests.once import once
from tests.run_events import events

pytestmark = pytest.mark.forked

Gpurun = Callable[..., "subprocess.CompletedProcess[bytes]"]

TRAININGS = Path(__file__).parent / "trainings_for_ranks.py"
LOSSES = Path(__file__).parent / "losses_for_ranks.py"
Alone = Callable[[Path, str], dict[str, list[float]]]
RANKS = ("--ddp", "--nproc-per-node", "2")
A_MEAN = (*RANKS, "--loss-reduction", "mean")
"""For tests of other things than its measurement, which takes launches of its own."""
AS_DDP = (
    r"gpurun: ranks train as hand-written DistributedDataParallel does, not as one process: "
    r"in step 1 the gradient of .*; all gradients are \d+\.\d\d% apart\n"
)
ODD = """
import os, sys
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
kind, rank = sys.argv[1], int(os.environ.get("RANK", "0"))
torch.manual_seed(3)
data = TensorDataset(torch.randn(96, 10), torch.randint(0, 4, (96,)))
if kind == "distributed":
    torch.distributed.init_process_group("gloo")
net = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
if kind == "distributed":
    net = nn.parallel.DistributedDataParallel(net)
if kind == "parallel":
    net = nn.DataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1 * (rank + 1 if kind == "rate" else 1))
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(data)

class Mixed(nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        for _ in range(300):
            out = out + 0.0
        return out.pow(2).mean() + out.pow(2).sum()

class Rows(nn.EmbeddingBag):
    def forward(self, x):
        return super().forward(x.long().abs())

def refuse_sparse(tensor, *others, add_up=torch.distributed.all_reduce):
    if tensor.is_sparse:
        raise RuntimeError("NCCL does not support sparse tensors")
    return add_up(tensor, *others)

if kind == "sparse":
    torch.distributed.get_backend = lambda *_: "nccl"  # as on GPUs
    torch.distributed.all_reduce = refuse_sparse
    net = Rows(10, 4, sparse=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
if kind == "mixed":
    net = Mixed(10, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

loader = DataLoader(data, batch_size=None if kind == "singly" else 16, shuffle=True)
if kind.endswith("stream"):
    loader = DataLoader(Stream(), batch_size=1 if kind == "small stream" else 16)
held_out = DataLoader(data, batch_size=16, shuffle=True)
seen = 0
for epoch in range(2):
    for i in range(5) if kind == "by hand" else enumerate(loader):
        x, y = data[:16] if kind == "by hand" else i[1]
        seen += len(x)
        out = net(x if x.dim() > 1 else x[None])
        loss = out if kind == "mixed" else F.cross_entropy(out, y if y.dim() else y[None])
        if kind == "root":
            loss = F.mse_loss(out, torch.zeros_like(out)).sqrt()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if kind == "apart" and rank and epoch and seen == 96:
            with torch.no_grad():
                net[0].bias.add_(1)
        if kind == "early" and rank == 1 and epoch == 1:
            sys.exit(0)
    if kind == "evaluation":
        seen += 1000 * sum(len(x) for x, _ in held_out)
print(kind, seen)
"""


def summary(text: bytes) -> dict[str, list[float]]:
    """What the trainings printed: by name, the sum of each parameter."""
    return dict(json.loads(line) for line in text.splitlines() if line.startswith(b"["))


def newest_run(folder: Path) -> Path:
    runs = folder / ".gpurun" / "runs"
    return max(runs.iterdir(), key=lambda path: path.stat().st_mtime)


def details(folder: Path, trait: str) -> set[str]:
    told = events(newest_run(folder), "trait")
    return {event["detail"] for event in told if event["trait"] == trait}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """What one process trains, by the script and how its losses reduce."""

    def trained(script: Path, how: str) -> dict[str, list[float]]:
        def train(folder: Path) -> dict[str, list[float]]:
            done = NURSERY.run([str(script), how], folder, os.environ)
            assert done.returncode == 0, done.stderr.decode()
            return summary(done.stdout)

        return once(tmp_path_factory, f"alone-{script.stem}-{how}", train)

    return trained


@pytest.mark.slow  # quick twin: test_ranks_train_what_one_process_trains
def test_two_ranks_train_what_one_process_trains_but_for_what_is_of_a_batch(
    tmp_path: Path, gpurun: Gpurun, alone: Alone
) -> None:
    """The global batch is kept: weights agree to rounding, but for statistics of half a batch."""
    together, one = tmp_path, alone(TRAININGS, "mean")
    ranks = gpurun(*A_MEAN, str(TRAININGS), "mean", cwd=together)
    assert ranks.returncode == 0, ranks.stderr.decode()
    two = summary(ranks.stdout)
    assert list(two) == list(one)
    repeats, repeated = one.pop("dropped"), two.pop("dropped")
    spread = (stdev(repeats) ** 2 + stdev(repeated) ** 2) ** 0.5 / len(repeats) ** 0.5
    assert mean(repeated) == pytest.approx(mean(repeats), abs=4 * spread)
    assert repeated != pytest.approx(repeats, abs=1e-6)  # each rank drops others
    for name, sums in one.items():
        if name not in ("normalised", "left_over"):
            assert two[name] == pytest.approx(sums, rel=1e-4, abs=1e-4), name
    # BatchNorm normalises over a rank's share: another training, but the same step and order
    assert two["normalised"] == pytest.approx(one["normalised"], abs=0.5)
    assert two["normalised"] != pytest.approx(one["normalised"], rel=1e-4, abs=1e-4)
    assert details(together, "loss_reduction") == {"mean"}
    assert details(together, "hidden_ddp") >= {"Net", "Net, some parameters unused", "Sequential"}
    assert events(newest_run(together), "hook") == []
    assert {path.name for path in together.iterdir()} == {".gpurun", "best.pt"}


@pytest.mark.parametrize(
    ("ranks", "script", "how", "names"),
    [
        (2, LOSSES, "sum", ()),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (2, LOSSES, "mean", ()),
                (3, LOSSES, "mean", ()),
                (3, LOSSES, "sum", ()),
                (2, TRAININGS, "sum", ()),
                # one training after the other in a process, where no batch can be parted evenly
                (3, TRAININGS, "mean", ("clamped_by_hand", "heads_in_turn", "listed")),
            )
        ),
    ],
)
def test_ranks_train_what_one_process_trains(
    tmp_path: Path,
    gpurun: Gpurun,
    alone: Alone,
    ranks: int,
    script: Path,
    how: str,
    names: tuple[str, ...],
) -> None:
    words = ("--ddp", "--nproc-per-node", str(ranks), "--oversubscribe", "--loss-reduction", how)
    done = gpurun(*words, str(script), how, *names, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    found, expected = summary(done.stdout), alone(script, how)
    assert set(found) == set(names or expected)
    for name, sums in found.items():
        assert sums == pytest.approx(expected[name], rel=1e-5, abs=1e-5), name


PLAIN = """
import gc
import torch
destroy = torch.distributed.destroy_process_group

def destroyed():
    kind = torch.nn.parallel.DistributedDataParallel
    wrappers = [o for o in gc.get_objects() if type(o) is kind]
    print(len(wrappers), sum("reducer" in vars(o) for o in wrappers), flush=True)
    destroy()

torch.distributed.destroy_process_group = destroyed
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.05)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
for epoch in range(2):
    for x, y in DataLoader(data, 16, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
print(sum(p.double().abs().sum().item() for p in net.parameters()), flush=True)
"""


@pytest.mark.slow  # quick twin: how they are accumulated, below
@pytest.mark.parametrize(
    ("asked", "apart"),
    [
        ("static_graph,gradient_as_bucket_view,bucket_cap_mb=1", 1e-6),
        ("compression=fp16", 1e-3),
    ],
)
def test_gradients_may_be_exchanged_in_other_ways(
    tmp_path: Path, gpurun: Gpurun, asked: str, apart: float
) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    usual, other = (
        gpurun(*A_MEAN, *more, "plain.py", cwd=tmp_path) for more in ((), ("--ddp-options", asked))
    )
    assert (usual.returncode, other.returncode) == (0, 0), other.stderr.decode()
    weights, ends = zip(
        *(done.stdout.decode().splitlines() for done in (usual, other)), strict=True
    )
    assert float(weights[1]) == pytest.approx(float(weights[0]), rel=apart)
    # a reducer that outlives the group waits for gloo's threads, now and then for ever
    assert ends == ("1 0", "1 0")


ACCUMULATED = """
import torch
from torch.utils.data import DataLoader, TensorDataset
wrapper = torch.nn.parallel.DistributedDataParallel
forward, exchanged = wrapper.forward, []

def watched(self, *args):
    exchanged.append(self.require_backward_grad_sync)
    return forward(self, *args)

wrapper.forward = watched
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.05)
for epoch in range(4):
    for i, (x,) in enumerate(DataLoader(TensorDataset(torch.ones(128, 8)), 16)):
        (net(x).pow(2).mean() / 4).backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
print(*map(int, exchanged), flush=True)
"""


@pytest.mark.slow
def test_gradients_that_are_accumulated_are_exchanged_once_a_step(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    (tmp_path / "train.py").write_text(ACCUMULATED)
    done = gpurun(*A_MEAN, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    exchanged = done.stdout.decode().split()
    assert len(exchanged) >= 16
    assert exchanged == ["0", "0", "0", "1"] * (len(exchanged) // 4)


WRITES = """
import os, shutil
import torch, torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
shutil.rmtree("out")
os.makedirs("out")
os.symlink("out", "latest")
with open("log.txt", "a") as log:
    log.write("begin\\n")
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(2):
    for (x,) in DataLoader(TensorDataset(torch.randn(64, 4)), 16):
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        optimizer.step()
    torch.save(net.state_dict(), "out/new.pt")
    os.rename("out/new.pt", f"out/{epoch}.pt")
    os.mkdir(f"out/samples-{epoch}")
    with open("log.txt", "a") as log:
        log.write(f"{epoch}\\n")
shutil.rmtree("out/samples-0")
os.rmdir("out/samples-1")
net.load_state_dict(torch.load("latest/1.pt"))
print(sorted(os.listdir("out")), flush=True)
print("order", *{"cat", "dog", "bird", "fish", "worm", "bee"}, flush=True)
"""


@pytest.mark.slow  # quick twin: the losses, above
def test_what_ranks_write_and_how_texts_hash_is_as_in_one_process(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    """Rank 0's files are the real ones; the others have their own, and nothing of them is left.

    Texts hash alike in all ranks: the order of a set may number the words of a vocabulary.
    """
    (tmp_path / "writes.py").write_text(WRITES)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.pt").touch()
    done = gpurun(*A_MEAN, "writes.py")
    assert done.returncode == 0, done.stderr.decode()
    files, order = done.stdout.splitlines()
    assert files == b"['0.pt', '1.pt']"
    assert order.startswith(b"order ")
    (other,) = newest_run(tmp_path).glob("ranks/**/1/stdout.log")
    assert other.read_bytes() == done.stdout
    assert (tmp_path / "log.txt").read_text().split() == ["begin", "0", "1"]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"writes.py", ".gpurun", "out", "latest", "log.txt"}
    assert not list(Path("/var/tmp").glob(f"gpurun-rank-{crc32(bytes(newest_run(tmp_path))):08x}*"))


PICKLED = """
import os, subprocess, sys
import torch
from torch.utils.data import DataLoader, TensorDataset

LOAD = "import torch; print(torch.load('model.pt', weights_only=False)(torch.ones(1, 8)).item())"

def judge(net, answers):
    answers.put(net(torch.ones(1, 8)).item())

if __name__ == "__main__":
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(2):
        for (x,) in DataLoader(TensorDataset(torch.randn(96, 8)), 16, shuffle=True):
            optimizer.zero_grad()
            (net(x) - 1).pow(2).mean().backward()
            optimizer.step()
    torch.save(net, "model.pt")
    for method in ("spawn", "fork"):
        context = torch.multiprocessing.get_context(method)
        answers = context.SimpleQueue()
        child = context.Process(target=judge, args=(net, answers))
        child.start()
        child.join()
        assert answers.get() == net(torch.ones(1, 8)).item()
    without_gpurun = [sys.executable, "-I", "-c", LOAD]
    loaded = subprocess.check_output(without_gpurun, env={"PATH": os.environ["PATH"]})
    assert float(loaded) == net(torch.ones(1, 8)).item()
"""


@pytest.mark.slow
def test_children_call_the_model_that_was_wrapped_and_a_process_without_gpurun_loads_it(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    (tmp_path / "train.py").write_text(PICKLED)
    done = gpurun(*A_MEAN, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert details(tmp_path, "hidden_ddp") == {"Sequential"}


def odd(gpurun: Gpurun, folder: Path, kind: str, how: tuple[str, ...] = RANKS) -> Any:
    (folder / "odd.py").write_text(ODD)
    return gpurun(*how, "odd.py", kind, cwd=folder)


@pytest.mark.slow  # quick twin: the script parallel in another way of test_ddp_verified.py
@pytest.mark.parametrize("kind", ["distributed", "parallel"])
def test_a_script_that_is_parallel_by_itself_runs(
    tmp_path: Path, gpurun: Gpurun, kind: str
) -> None:
    done = odd(gpurun, tmp_path, kind, A_MEAN)
    assert done.returncode == 0, done.stderr.decode()
    shared = (
        kind == "parallel"
    )  # DataParallel sees one device, and each rank has half of each batch
    assert done.stdout.decode().split() == [kind, "96" if shared else "192"]
    assert bool(details(tmp_path, "hidden_ddp")) == shared
    assert (b"run it without --ddp" in done.stderr) != shared


@pytest.mark.slow  # quick twin: unit/test_ddp_loader_roles.py
def test_an_evaluation_that_looks_like_training_is_known_when_it_was_seen_once(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    """Gradients on, the model in training mode, the loader shuffled: half of 96, then all."""
    done = odd(gpurun, tmp_path, "evaluation")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().split() == ["evaluation", str(1000 * (48 + 96) + 48 + 48)]
    told = done.stderr.decode()
    line = ODD[: ODD.index("held_out = ")].count("\n") + 1
    assert told.count(f"odd.py:{line} was read to its end and trained nothing") == 1
    assert "computed from it cover only each rank's share" in told


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        ("singly", 2, "a loader without a batch size"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("apart", 1, "at their end, after step 12, the ranks differ in their weights"),
                ("sparse", 2, "cannot exchange sparse gradients: RuntimeError: NCCL does not"),
                ("by hand", 2, "no DataLoader feeds the training"),
                ("mixed", 2, "beside it would count once for each rank (in step 1 the gradient"),
                ("small stream", 2, "a stream in batches of 1"),
                ("rate", 1, "at step 1 the ranks differ in their learning rates: 0.1, 0.2"),
                ("early", 1, "rank 1 ended after step 7, and rank 0 waits for it"),
            )
        ),
    ],
)
def test_what_cannot_train_alike_ends_by_name(
    tmp_path: Path, gpurun: Gpurun, kind: str, code: int, words: str
) -> None:
    done = odd(gpurun, tmp_path, kind, A_MEAN if code == 1 else RANKS)
    assert done.returncode == code, done.stderr.decode()
    assert words in done.stderr.decode()
    assert b"Traceback" not in done.stderr


@pytest.mark.slow  # quick twin: test_ddp_verified.py has one
def test_a_loss_that_cannot_be_put_together_is_told_with_its_figure(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    """The root of a mean is not the mean of roots."""
    done = odd(gpurun, tmp_path, "root")
    assert done.returncode == 0, done.stderr.decode()
    assert len(re.findall(AS_DDP, done.stderr.decode())) == 1


@pytest.mark.slow  # quick twin: unit/test_ddp_sample_by_sample.py
def test_a_stream_is_shared_among_ranks(tmp_path: Path, gpurun: Gpurun) -> None:
    """Its samples have no indices that trials could compare."""
    done = odd(gpurun, tmp_path, "stream")
    assert done.returncode == 0, done.stderr.decode()
    assert b"the loss is a mean over samples" in done.stderr


def test_ranks_need_a_number_where_there_is_no_gpu(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    done = gpurun("--ddp", "train.py", cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2
    assert b"set it: --nproc-per-node 2" in done.stderr


@pytest.mark.slow  # quick twin: ranks that differ, above
def test_ranks_end_where_what_keeps_them_alike_fails(tmp_path: Path, gpurun: Gpurun) -> None:
    """They would train alone, each its own model."""
    (tmp_path / "odd.py").write_text(
        "import torch\n"
        "from gpurun.runtime.ddp.exchanged_by_hand import UnwrappedParameters\n"
        "def collect(*_): raise KeyError('torch changed')\n"
        "UnwrappedParameters.collect = collect\n" + ODD
    )
    done = gpurun(*RANKS, "odd.py", "plain", cwd=tmp_path)
    assert done.returncode == 2
    assert b"gpurun: the gradients of ranks failed: KeyError: 'torch changed'" in done.stderr
