"""How a trial ends in the script's process: at once, on all ranks, whatever the script does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.forked import NURSERY, REPOSITORY
from tests.integration.launched import (
    DEADLINE_SECONDS,
    ORPHAN_SECONDS,
    alive,
    pids,
    wait_for,
)
from tests.run_events import events, processes, rows_by

BOOTSTRAP = REPOSITORY / "gpurun" / "runtime" / "bootstrap"
STOP = {
    "min_steps": 12,
    "min_seconds": 0.0,
    "max_steps": 40,
    "warmup_steps": 4,
    "audit_steps": 2,
}
MODEL = """
import os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
def batches(rows=80, **options):
    data = TensorDataset(torch.randn(rows, 8), torch.randint(0, 2, (rows,)))
    return DataLoader(data, batch_size=8, **options)
def step(x, y, model=model):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""


def prepared(
    folder: Path,
    script: str,
    settings: tuple[dict[str, Any], ...] = (),
    trees: dict[str, Any] | None = None,
    **trial: Any,
) -> Path:
    """A script that is to be a trial, and its spec, which is returned; its run folder is `run`."""
    (folder / "script.py").write_text(MODEL + script)
    run = folder / "run"
    run.mkdir()
    spec = {
        "run_dir": str(run),
        "launcher_pid": os.getpid(),
        "settings": settings,
        "trial": {"stop": STOP, **trial},
        "trees": trees,
    }
    (run / "spec.json").write_text(json.dumps(spec))
    return run / "spec.json"


def forked(folder: Path, script: str, **more: Any) -> tuple[int, str, str]:
    """A script as a trial, in a fork: exit code, stdout and stderr."""
    done = NURSERY.run(["script.py"], folder, os.environ, prepared(folder, script, **more))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def start(folder: Path, script: str, **more: Any) -> subprocess.Popen[bytes]:
    """A script as a trial, as the launcher starts it."""
    spec = prepared(folder, script, **more)
    return subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(BOOTSTRAP), str(REPOSITORY)]),
            "GPURUN_SPEC": str(spec),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(child: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; one that hangs is killed with its session, and fails."""
    try:
        out, err = child.communicate(timeout=DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        raise
    return child.returncode, out.decode(), err.decode()


def test_steps_that_become_ten_times_as_long_are_measured(tmp_path: Path) -> None:
    """As those of a loader whose stock of batches is used up."""
    script = """
import time
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(20):
    for number, (x, y) in enumerate(batches()):
        time.sleep(0.002 if epoch < 2 else 0.05)
        step(x, y)
"""
    stop = {**STOP, "min_seconds": 1.0, "max_steps": 1000}
    code, _, err = forked(tmp_path, script, stop=stop)
    assert code == 0, err
    (stopped,) = events(tmp_path / "run", "stop")
    assert stopped["reason"] == "enough"
    assert stopped["steps"] < 100


def test_nothing_in_the_script_sees_or_delays_the_end(tmp_path: Path) -> None:
    child = start(
        tmp_path,
        """
import atexit, threading, time
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
atexit.register(print, "atexit ran")
threading.Thread(target=time.sleep, args=(3000,)).start()
class Batches(TensorDataset):
    def __getitem__(self, index):
        open(f"{os.getpid()}.pid", "w").close()
        return super().__getitem__(index)
data = Batches(torch.randn(400, 8), torch.randint(0, 2, (400,)))
while True:
    try:
        for x, y in DataLoader(data, batch_size=8, num_workers=2, persistent_workers=True):
            step(x, y)
            print("step", end=" ")
    except:
        print("swallowed")
    finally:
        print("finally")
""",
    )
    code, out, err = finish(child)
    assert (code, err) == (0, "")
    assert out == "step " * 11  # the twelfth print never comes, and what was printed is flushed
    workers = pids(tmp_path, 2)
    assert wait_for(lambda: not any(alive(pid) for pid in workers), ORPHAN_SECONDS)
    (stop,) = events(tmp_path / "run", "stop")
    assert (stop["reason"], stop["steps"]) == ("enough", 12)
    assert stop["window_begin_ns"] < stop["window_end_ns"]
    assert len(events(tmp_path / "run", "audit")) == 2
    assert len(events(tmp_path / "run", "end")) == 1
    assert events(tmp_path / "run", "hook") == []


def test_it_holds_at_the_first_step(tmp_path: Path) -> None:
    child = start(
        tmp_path,
        """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(800):
    step(x, y)
    open("a_step", "w").close()
""",
        hold_at_first_step=True,
    )
    control = tmp_path / "run" / "control"
    assert wait_for(lambda: (control / "first_step").exists())
    time.sleep(0.3)
    assert child.poll() is None
    assert not (tmp_path / "a_step").exists()
    (control / "go").touch()
    assert finish(child)[0] == 0
    assert (tmp_path / "a_step").exists()


def test_a_trial_without_optimizer_steps_ends_too(tmp_path: Path) -> None:
    code, _, err = forked(
        tmp_path,
        """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    for x, y in batches():
        nn.functional.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.data -= 0.1 * p.grad
            p.grad = None
""",
    )
    assert code == 0, err
    assert events(tmp_path / "run", "stop")[0]["reason"] == "enough"


def test_evaluation_before_training_does_not_count_as_training(tmp_path: Path) -> None:
    code, out, err = forked(
        tmp_path,
        """
model.eval()
with torch.no_grad():
    for x, y in batches(11 * 8):
        model(x)
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(800):
    step(x, y)
print("too late")
""",
    )
    assert (code, out) == (0, ""), err
    (stop,) = events(tmp_path / "run", "stop")
    assert stop["steps"] == 12
    assert len(rows_by("optimizer", events(tmp_path / "run"))) == 12


def test_all_ranks_end_together_and_their_parent_with_them(tmp_path: Path) -> None:
    child = start(
        tmp_path,
        """
import torch.multiprocessing as multiprocessing
import torch.distributed as distributed
def rank(number, port):
    global optimizer
    open(f"{os.getpid()}.pid", "w").close()
    store = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=store, rank=number, world_size=2)
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    while True:
        for x, y in batches():
            step(x, y, wrapped)
if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(rank, args=(port,), nprocs=2)
    open("checkpoint.pt")  # no rank has written it
""",
        trees={"own": str(tmp_path.resolve()), "others": [str(tmp_path / "other")]},
    )
    code, _, err = finish(child)
    assert code == 0, err
    assert "Error" not in err
    ranks = pids(tmp_path, 2)
    assert wait_for(lambda: not any(alive(pid) for pid in ranks), ORPHAN_SECONDS)
    stops = events(tmp_path / "run", "stop")
    assert [stop["reason"] for stop in stops] == ["enough", "enough"]
    assert len({stop["steps"] for stop in stops}) == 1
    ended = [told for told in processes(tmp_path / "run") if told[-1]["event"] == "end"]
    assert len(ended) == 2
    for told in ended:
        (origins,) = (x for x in told if x["event"] == "origins")
        assert [str(tmp_path / "script.py")] == [file for _, file in origins["own"]]
        assert "torch" in [name for name, _ in origins["installed"]]


def test_one_thread_alone_ends_the_parent_of_the_ranks(tmp_path: Path) -> None:
    """Two at once would both write what a profiler or a measurer of coverage writes at the end."""
    child = start(
        tmp_path,
        """
import multiprocessing, time
def train():
    global optimizer
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        for x, y in batches():
            step(x, y)
def leave(code, leave=os._exit):
    with open("leaving.txt", "a") as log:
        log.write("left\\n")
    time.sleep(0.5)
    leave(code)
if __name__ == "__main__":
    os._exit = leave
    trainer = multiprocessing.get_context("spawn").Process(target=train)
    trainer.start()
    trainer.join()
""",
    )
    code, _, err = finish(child)
    assert (code, err) == (0, "")
    assert (tmp_path / "leaving.txt").read_text() == "left\n"
