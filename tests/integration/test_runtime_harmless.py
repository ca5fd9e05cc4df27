"""What goes wrong on our side stays there: the script goes on, the record says what happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY, Gpurun
from tests.run_events import events, processes, rows_by, run_in

TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def train(steps=12, begin=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(8 * steps, 8), torch.randint(0, 2, (8 * steps,)))
    for number, (x, y) in enumerate(DataLoader(data, batch_size=8)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if begin is not None:
            begin(number)
    return loss.item()
"""


def write(folder: Path, name: str, text: str) -> None:
    (folder / "training.py").write_text(TRAIN)
    (folder / name).write_text(text)


def result(folder: Path) -> dict[str, Any]:
    found = list((folder / ".gpurun" / "runs").glob("*/result.json"))
    assert len(found) == 1
    return dict(json.loads(found[0].read_text()))


def test_every_hook_may_break(tmp_path: Path, gpurun: Gpurun) -> None:
    write(
        tmp_path,
        "script.py",
        """
from gpurun.runtime.core.post_import import FINDER
def broken(*args, **kwargs):
    raise RuntimeError("a hook of ours")
def break_hooks(torch):
    from gpurun.runtime.observe import optimizers, root_modules, step_clock, watched_loaders
    for owner, name in (
        (step_clock.StepClock, "_close"), (root_modules.RootModules, "_is_root"),
        (root_modules, "sizes"),
        (watched_loaders.Loaders, "_opened"), (watched_loaders.Loaders, "_built"),
        (watched_loaders.Loaders, "_exhausted"),
        (optimizers, "_optimizer_event"),
    ):
        setattr(owner, name, broken)
FINDER._waiting.get("torch", []).insert(0, break_hooks)  # before the hooks are installed
import torch
from training import train
print(train())
""",
    )
    # without gpurun around it the same script trains in the same way
    plain = "from training import train\nprint(train())\n"
    expected = subprocess.run(
        [sys.executable, "-c", plain], cwd=tmp_path, capture_output=True, check=True
    )
    done = gpurun("script.py", env={"PYTHONPATH": str(REPOSITORY)})
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == expected.stdout
    assert len(result(tmp_path)["hook_errors"]) >= 4


@pytest.mark.slow  # quick twin: every hook may break, in this file
def test_a_broken_knob_is_left_out(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "broken_knob.py").write_text(
        """
from gpurun.knobs.api import Effect, Knob
class Context:
    def __enter__(self):
        raise RuntimeError("context")
    def __exit__(self, *how):
        return None
class Exit(Context):
    def __enter__(self):
        return None
    def __exit__(self, *how):
        raise RuntimeError("exit")
def raising(*args):
    raise RuntimeError("call-back")
def ended():
    raise RuntimeError("after backward")
def half(call):
    call.arguments["batch_size"] = 3
    raise RuntimeError("edit")
def bad_workers(call):
    call.arguments["num_workers"] = -5
class Broken(Knob):
    name, effect = "broken", Effect.PIPELINE
    def candidates(self, facts):
        return [1]
    def apply(self, value, hooks):
        hooks.before_loader(half)
        hooks.before_loader(bad_workers)
        for register in (hooks.after_optimizer, hooks.on_root, hooks.on_step):
            register(raising)
        hooks.on_import("wave", raising)
        hooks.around_root_call(Context)
        hooks.around_root_call(Exit)
        hooks.around_root_call(lambda: Context(), raising)
        hooks.around_backward(raising, raising)
        hooks.around_backward(lambda loss: loss, ended)
"""
    )
    write(tmp_path, "script.py", "import wave\nfrom training import train\nprint(train())\n")
    run = tmp_path / "run"
    run.mkdir()
    spec = {
        "run_dir": str(run),
        "launcher_pid": os.getpid(),
        "settings": [{"knob": "broken", "value": 1}],
        "knob_paths": [str(tmp_path / "broken_knob.py")],
    }
    (run / "spec.json").write_text(json.dumps(spec))
    outputs = []
    for variables in ({}, {"GPURUN_SPEC": str(run / "spec.json"), "PYTHONPATH": _bootstrap()}):
        done = subprocess.run(
            [sys.executable, "script.py"],
            cwd=tmp_path,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | variables,
            capture_output=True,
            check=True,
        )
        assert done.stderr == b""
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    failed = events(run, "hook")
    errors = {hook["error"].split(": ")[-1] for hook in failed}
    assert errors >= {"edit", "call-back", "context", "exit", "after backward"}
    assert {hook["hook"] for hook in failed} >= {"edited loader"}
    assert len(rows_by("optimizer", events(run))) == 12


def _bootstrap() -> str:
    return str(REPOSITORY / "gpurun" / "runtime" / "bootstrap")


def test_a_full_disk_ends_the_record_not_the_script(tmp_path: Path, gpurun: Gpurun) -> None:
    write(
        tmp_path,
        "script.py",
        """
import resource, signal
import torch
from training import train
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
print(train(400))
""",
    )
    done = gpurun("script.py")
    assert done.returncode == 0, done.stderr.decode()
    assert float(done.stdout) > 0
    assert 0 < result(tmp_path)["steps"] < 400


def test_a_crash_and_a_signal_keep_what_was_recorded(tmp_path: Path, gpurun: Gpurun) -> None:
    for ending, code in (("raise OSError('at 30')", 1), ("os.kill(os.getpid(), 15)", 128 + 15)):
        folder = tmp_path / str(code)
        folder.mkdir()
        write(
            folder,
            "script.py",
            f"""
import os, time
from training import train
def begin(number):
    if number == 29:
        time.sleep(0.6)  # longer than the record may lag behind: step 29 is written at its end
    if number == 30:
        {ending}
train(60, begin)
""",
        )
        done = gpurun("script.py", cwd=folder)
        assert done.returncode == code, done.stderr.decode()
        found = result(folder)
        assert 29 <= found["steps"] <= 31
        assert found["status"] == ("failed" if code == 1 else "killed")
    assert signal.SIGTERM == 15


@pytest.mark.slow  # quick twin: test_runtime_trial.py
def test_spawned_ranks_train_and_are_recorded_whole(tmp_path: Path, gpurun: Gpurun) -> None:
    package = tmp_path / "project"
    package.mkdir()
    write(package, "__init__.py", "")
    (package / "train.py").write_text(
        """
import torch.multiprocessing as multiprocessing
from .training import train

def rank(number):
    train(12)

if __name__ == "__main__":
    multiprocessing.spawn(rank, nprocs=2)
"""
    )
    done = gpurun("-m", "project.train")
    assert done.returncode == 0, done.stderr.decode()
    ranks = [told for told in processes(run_in(tmp_path)) if rows_by("optimizer", told)]
    assert [len(rows_by("optimizer", told)) for told in ranks] == [12, 12]
    assert [told[-1]["event"] for told in ranks] == ["end", "end"]


def test_a_traced_model_is_traced_as_without_us(tmp_path: Path, gpurun: Gpurun) -> None:
    """A warning of torch's tracer would name our file, and tracing is not training."""
    script = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    if step % 3 == 0:
        traced = torch.jit.trace(model, torch.randn(4, 3))
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
print(traced(torch.ones(2, 3)).tolist(), traced.graph)
"""
    (tmp_path / "script.py").write_text(script)
    plain = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, check=True
    )
    done = gpurun("--quiet", "script.py")
    assert done.stdout == plain.stdout
    assert b"TracerWarning" not in done.stderr, done.stderr.decode()
    told = run_in(tmp_path)
    assert [root["class_name"] for root in events(told, "root")] == ["Linear"]
    assert events(told, "hook") == []
    assert len(rows_by("optimizer", *processes(told))) == 9
