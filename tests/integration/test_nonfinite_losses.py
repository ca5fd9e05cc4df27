"""Losses that are not finite in a full run: reported with their step, left out, or its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun

pytestmark = pytest.mark.forked

TRAINING = """
import atexit, sys, time, torch
torch.manual_seed(0)
atexit.register(lambda: print("cleaned up"))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
for step in range(1, 31):
    time.sleep(0.012)
    x = torch.randn(8, 4)
    if step in BAD:
        x = x * float("nan")
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    before = model.weight.detach().clone()
    optimizer.step()
    if step in BAD:
        print(step, torch.equal(before, model.weight), model.weight.grad.isnan().all().item())
print("trained", model.weight.isfinite().all().item())
"""

SPAWNED = """
import os
import torch
import torch.distributed as dist

def train(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(2):
        loss = model(torch.randn(8, 4)).square().mean()
        if step == 1 and rank == 0:
            loss = loss + float("inf")
        optimizer.zero_grad()
        loss.backward()
        before = model.module.weight.detach().clone()
        optimizer.step()
    text = "left out" if torch.equal(before, model.module.weight) else "stepped"
    os.write(1, f"{text}\\n".encode())  # at once, or the two ranks' lines mix
    dist.barrier()

if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (os.path.abspath("store"),), nprocs=2)
"""

FORKED = """
import os, time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(bad):
    for step in range(1, 21):
        time.sleep(0.012)
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        (loss * float("nan") if step == bad else loss).backward()
        optimizer.step()
train(bad=0)
child = os.fork()
if child == 0:
    train(bad=5)
    os._exit(0)
os.waitpid(child, 0)
"""

STUBBORN = """
import atexit, sys, threading, time, torch
atexit.register(lambda: print("cleaned up"))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train():
    for step in range(1, 301):
        time.sleep(0.012)
        loss = model(torch.randn(8, 4)).square().mean()
        if step == 7:
            loss = loss * float("nan")
        try:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        except CAUGHT:
            print("caught")

RUN
print("trained")
"""

OWN_STEPS = """
import sys, time, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
lbfgs = sys.argv[1] == "lbfgs"
optimizer = (torch.optim.LBFGS if lbfgs else torch.optim.SGD)(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
left_out = []
for step in range(1, 21):
    time.sleep(0.012)
    x = torch.randn(8, 4) * (float("nan") if step == 7 else 1)

    def closure(scale=lambda loss: loss):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scale(loss).backward()
        return loss

    before = model.weight.detach().clone()
    if lbfgs:
        optimizer.step(closure)
    else:
        closure(scaler.scale)
        scaler.step(optimizer)
        scaler.update()
    if torch.equal(before, model.weight):
        left_out.append(step)
print(*left_out)
"""


def run(
    tmp_path: Path, gpurun: Gpurun, *flags: str, bad: tuple[int, ...]
) -> tuple[int, str, list[str], dict[str, Any]]:
    """Exit code, stdout, our lines about the loss, and the result."""
    (tmp_path / "train.py").write_text(TRAINING.replace("BAD", repr(bad)))
    done = gpurun("--json", "r.json", *flags, "train.py")
    said = [line for line in done.stderr.decode().splitlines() if "the loss is" in line]
    return (
        done.returncode,
        done.stdout.decode(),
        said,
        json.loads((tmp_path / "r.json").read_text()),
    )


def test_a_loss_that_is_not_finite_is_reported_once_with_its_step(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    code, out, said, result = run(tmp_path, gpurun, bad=(7, 9))
    assert (code, "trained False" in out) == (0, True)
    assert said == ["gpurun: the loss is nan at step 7"]
    seen = result["nonfinite_loss"]
    assert (seen["step"], seen["loss"], seen["last_finite_step"]) == (7, "nan", 6)
    assert seen["steps"] == 24  # the parameters are NaN from then on
    assert "the loss was nan at step 7, and at 23 later steps" in result["notes"]


def test_finite_losses_are_not_reported(tmp_path: Path, gpurun: Gpurun) -> None:
    _, out, said, result = run(tmp_path, gpurun, bad=())
    assert "trained True" in out
    assert said == []
    assert result["nonfinite_loss"] is None


def test_skip_leaves_out_the_optimizers_step_and_says_that_the_training_changed(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    code, out, said, result = run(tmp_path, gpurun, "--on-nonfinite", "skip", bad=(7, 9))
    assert code == 0
    assert out.splitlines() == ["7 True True", "9 True True", "trained True", "cleaned up"]
    assert said == [
        "gpurun: the loss is nan at step 7; its optimizer step is left out (--on-nonfinite skip)"
    ]
    assert result["steps"] == 30
    assert result["nonfinite_loss"]["skipped_steps"] == 2
    assert any(
        "2 optimizer steps left out, which changes the training" in n for n in result["notes"]
    )


def test_the_first_step_counts_once(tmp_path: Path, gpurun: Gpurun) -> None:
    """Until an optimizer steps, each backward pass looks like a step."""
    _, _, said, result = run(tmp_path, gpurun, "--on-nonfinite", "skip", bad=(1,))
    assert len(said) == 1
    seen = result["nonfinite_loss"]
    assert (seen["step"], seen["steps"], seen["skipped_steps"]) == (1, 1, 1)


@pytest.mark.slow
def test_ranks_of_the_scripts_own_leave_out_no_step(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text(SPAWNED)
    done = gpurun("--on-nonfinite", "skip", "train.py")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().split() == ["stepped", "stepped"]
    assert b"its optimizer step was taken: skip is for one process" in done.stderr


def test_a_forked_child_counts_its_own_steps(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text(FORKED)
    said = gpurun("train.py").stderr.decode().splitlines()
    assert [x for x in said if "the loss is" in x] == ["gpurun: the loss is nan at step 5"]


def test_stop_ends_the_run_as_sys_exit_would(tmp_path: Path, gpurun: Gpurun) -> None:
    code, out, said, result = run(tmp_path, gpurun, "--on-nonfinite", "stop", bad=(7,))
    assert code == 1
    assert "trained" not in out
    assert "cleaned up" in out
    assert said == ["gpurun: the loss is nan at step 7; the run ends (--on-nonfinite stop)"]
    assert result["status"] == "failed"
    assert 7 <= result["steps"] < 30


@pytest.mark.parametrize(
    ("caught", "how", "printed"),
    [
        pytest.param(
            "Exception", "train()", ["cleaned up"], id="except Exception", marks=pytest.mark.slow
        ),
        pytest.param("", "train()", ["caught"], id="bare except", marks=pytest.mark.slow),
        pytest.param(
            "", "thread = threading.Thread(target=train); thread.start(); thread.join()", [],
            id="a thread",
        ),
    ],
)  # fmt: skip
def test_stop_ends_a_script_that_catches_everything_at_its_next_step(
    tmp_path: Path, gpurun: Gpurun, caught: str, how: str, printed: list[str]
) -> None:
    source = STUBBORN.replace("except CAUGHT", f"except {caught}".rstrip()).replace("RUN", how)
    (tmp_path / "train.py").write_text(source)
    done = gpurun("--on-nonfinite", "stop", "--json", "r.json", "train.py")
    assert done.returncode == 1, done.stderr.decode()
    assert done.stdout.decode().splitlines() == printed
    assert b"the loss is nan at step 7; the run ends (--on-nonfinite stop)" in done.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["status"] == "failed"
    assert 7 <= result["steps"] < 300


@pytest.mark.parametrize(
    ("kind", "left_out", "then"),
    [
        ("scaler", "7", "the script left out its optimizer step by itself"),
        pytest.param(
            "lbfgs", "", "its optimizer step was taken: skip is for one process, and not for a "
            "closure", marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_skip_leaves_out_no_step_of_a_loss_that_is_finite(
    tmp_path: Path, gpurun: Gpurun, kind: str, left_out: str, then: str
) -> None:
    """A gradient scaler leaves the step out by itself; the closure of LBFGS makes its loss late."""
    (tmp_path / "train.py").write_text(OWN_STEPS)
    done = gpurun("--on-nonfinite", "skip", "--json", "r.json", "train.py", kind)
    assert done.returncode == 0, done.stderr.decode()
    assert f"gpurun: the loss is nan at step 7; {then}" in done.stderr.decode().splitlines()
    seen = json.loads((tmp_path / "r.json").read_text())["nonfinite_loss"]
    assert seen["skipped_steps"] == 0
    assert done.stdout.decode().strip() == left_out


def test_quiet_keeps_the_warning_in_the_record(tmp_path: Path, gpurun: Gpurun) -> None:
    _, _, said, result = run(tmp_path, gpurun, "--quiet", bad=(7,))
    assert said == []
    assert result["nonfinite_loss"]["step"] == 7


@pytest.mark.parametrize("how", [("--nproc-per-node", "2"), ("--ddp",)])
def test_ranks_cannot_skip_steps_of_their_own(in_process: Gpurun, how: tuple[str, ...]) -> None:
    done = in_process("--on-nonfinite", "skip", *how, "train.py")
    assert done.returncode == 2
    assert b"ranks would leave out different steps" in done.stderr
    assert b"--on-nonfinite stop" in done.stderr


def test_an_unknown_action_is_refused(in_process: Gpurun) -> None:
    done = in_process("--on-nonfinite", "ignore", "train.py")
    assert done.returncode == 2
    assert done.stderr.splitlines()[:2] == [
        b"gpurun: --on-nonfinite 'ignore' is not known",
        b"gpurun: write warn, skip or stop",
    ]


LOCATED = """
import sys, torch
from torch import nn
kind = sys.argv[1]

class Part(nn.Module):
    def forward(self, x):
        if kind == "output" and step == 20:
            return x * float("nan")
        # the slope of a root at 0 is infinite, and 0 times infinite is NaN
        return x + (x * 0).sqrt().sum() * 0 if kind == "gradient" and step == 20 else x

class Mask(nn.Module):
    def forward(self, x):
        return x.masked_fill(torch.ones_like(x).tril() == 0, float("-inf"))

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(8, 8), Mask(), nn.Softmax(-1), nn.Linear(8, 8), Part(), nn.Linear(8, 1)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 31):
    x = torch.randn(8, 8)
    loss = model(x * float("inf") if kind == "input" and step == 20 else x).square().mean()
    optimizer.zero_grad()
    (loss * float("nan") if kind == "loss" and step == 20 else loss).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("kind", "step", "origin"),
    [
        ("output", 20, "the first NaN is in the output of 4 (Part)"),
        ("gradient", 21, "the loss of step 20 was finite, its gradient of 3.bias was not"),
        pytest.param(
            "input", 20, "the input of Sequential holds infinite values already",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "loss", 20, "every module's output was finite: the loss function or code around it "
            "made it", marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_where_the_first_bad_value_came_up_is_named_on_request(
    tmp_path: Path, gpurun: Gpurun, kind: str, step: int, origin: str
) -> None:
    """A mask's infinite values, which every step has, are no origin."""
    (tmp_path / "train.py").write_text(LOCATED)
    done = gpurun("--locate-nonfinite", "--json", "r.json", "train.py", kind)
    lines = done.stderr.decode().splitlines()
    assert lines[0] == f"gpurun: the loss is nan at step {step}"
    assert lines[1] == f"gpurun: {origin}"
    seen = json.loads((tmp_path / "r.json").read_text())["nonfinite_loss"]
    assert (seen["step"], seen["origin"]) == (step, origin)
