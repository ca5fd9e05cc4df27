"""`--emergency-checkpoint`: what is saved when a full run dies, and that nothing else changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gpurun.records.spec import DRAFT
from tests.conftest import Gpurun
from tests.integration.launched import start, wait_for
from tests.integration.small_disk import on_a_small_disk

pytestmark = pytest.mark.forked

TRAINING = """
import os, pathlib, signal, sys, time, torch

class Slow(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        if SLOW:
            pathlib.Path("stepping").touch()
            time.sleep(1)

def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(SIZE, 2)
    optimizer = Slow(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(1, 10**6):
        optimizer.zero_grad()
        model(torch.ones(4, SIZE)).square().mean().backward()
        optimizer.step()
        if step == 5:
            torch.save((model.state_dict(), optimizer.state_dict()), "own.pt") if OWN else None
            END
HANDLER
main()
"""


def script(
    folder: Path, end: str, handler: str = "", size: int = 4, own: bool = True, slow: bool = False
) -> None:
    text = TRAINING.replace("END", end).replace("HANDLER", handler).replace("OWN", str(own))
    (folder / "train.py").write_text(text.replace("SIZE", str(size)).replace("SLOW", str(slow)))


def checkpoints(folder: Path) -> list[Path]:
    return list(folder.glob(".gpurun/runs/*/*emergency*"))


def saved(folder: Path) -> dict[str, Any]:
    (path,) = checkpoints(folder)
    assert path.name == "emergency.pt"
    contents: dict[str, Any] = torch.load(path)
    return contents


def assert_state_of_step_five(folder: Path, contents: dict[str, Any]) -> None:
    model, optimizer = torch.load(folder / "own.pt")
    (module,), (stepped,) = contents["modules"], contents["optimizers"]
    assert module["class"] == "Linear"
    assert module["state_dict"].keys() == model.keys()
    assert all(torch.equal(module["state_dict"][key], model[key]) for key in model)
    momentum = stepped["state_dict"]["state"][0]["momentum_buffer"]
    assert torch.equal(momentum, optimizer["state"][0]["momentum_buffer"])
    assert contents["optimizer_steps"] == [5]


def test_an_exception_leaves_a_checkpoint_and_its_own_traceback_and_code(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    script(tmp_path, 'raise ValueError("boom")')
    done = gpurun("--emergency-checkpoint", "--json", "r.json", "train.py")
    assert done.returncode == 1
    contents = saved(tmp_path)
    assert_state_of_step_five(tmp_path, contents)
    assert contents["cause"] == "ValueError: boom"
    assert contents["inside_optimizer_step"] is False
    plain = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.stderr.startswith(plain.stderr)
    assert b"gpurun: emergency checkpoint: .gpurun/runs/" in done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["emergency_checkpoint"] == "emergency.pt"


@pytest.mark.parametrize("end", [pytest.param("return", marks=pytest.mark.slow), "sys.exit(3)"])
def test_a_script_that_ends_by_itself_leaves_none(tmp_path: Path, gpurun: Gpurun, end: str) -> None:
    script(tmp_path, end)
    assert gpurun("--emergency-checkpoint", "train.py").returncode == (3 if "3" in end else 0)
    assert checkpoints(tmp_path) == []


def test_a_run_that_stops_at_a_loss_that_is_not_finite_is_saved(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    script(tmp_path, "torch.nn.init.constant_(model.weight, float('nan'))", own=False)
    done = gpurun("--emergency-checkpoint", "--on-nonfinite", "stop", "train.py")
    assert done.returncode == 1, done.stderr.decode()
    contents = saved(tmp_path)
    assert contents["cause"] == "the loss is nan at step 6"
    assert contents["optimizer_steps"][0] >= 6
    assert contents["inside_optimizer_step"] is False
    assert len(contents["modules"]) == len(contents["optimizers"]) == 1


def test_a_run_that_is_killed_while_it_saves_leaves_no_half_of_a_checkpoint(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    handler = "class Bomb:\n    __reduce__ = lambda self: os.kill(os.getpid(), 9)"
    script(tmp_path, 'optimizer.param_groups[0]["bomb"] = Bomb(); raise ValueError', handler)
    assert gpurun("--emergency-checkpoint", "train.py").returncode == 128 + signal.SIGKILL
    assert checkpoints(tmp_path) == []


def test_the_next_run_removes_what_a_killed_launcher_left_half_written(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    killed = tmp_path / ".gpurun" / "runs" / "20260101-000000-abcdef"
    killed.mkdir(parents=True)
    for name in (f"{DRAFT}emergency.pt", f"{DRAFT}0123456789abcdef", "events-77.jsonl"):
        (killed / name).touch()
        os.utime(killed / name, (0, 0))
    (tmp_path / "train.py").touch()
    assert gpurun("train.py").returncode == 0
    assert [path.name for path in killed.iterdir()] == ["events-77.jsonl"]


def test_without_the_flag_there_is_none(tmp_path: Path, gpurun: Gpurun) -> None:
    script(tmp_path, 'raise ValueError("boom")')
    assert gpurun("train.py").returncode == 1
    assert checkpoints(tmp_path) == []


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_ends_the_script_as_ever_after_the_checkpoint(
    tmp_path: Path, clean_environment: dict[str, str], number: signal.Signals
) -> None:
    script(tmp_path, 'pathlib.Path("ready").touch(); time.sleep(600)')
    run = start(tmp_path, clean_environment, "--emergency-checkpoint", "train.py")
    assert wait_for((tmp_path / "ready").exists)
    os.kill(run.pid, number)
    _, err = run.communicate(timeout=120)
    assert run.returncode == 128 + number
    assert f"verdict=killed exit={128 + number}".encode() in err
    contents = saved(tmp_path)
    assert_state_of_step_five(tmp_path, contents)
    assert contents["cause"].startswith("SIGTERM" if number == 15 else "KeyboardInterrupt")


def test_a_sigterm_amid_an_optimizers_step_waits_for_its_end(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    script(tmp_path, "pass", own=False, slow=True)
    run = start(tmp_path, clean_environment, "--emergency-checkpoint", "train.py")
    assert wait_for((tmp_path / "stepping").exists)
    os.kill(run.pid, signal.SIGTERM)
    run.communicate(timeout=120)
    assert run.returncode == 128 + signal.SIGTERM
    contents = saved(tmp_path)
    assert contents["inside_optimizer_step"] is False
    assert contents["optimizer_steps"][0] >= 1


def test_a_handler_of_the_scripts_own_has_the_say(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    script(
        tmp_path,
        'pathlib.Path("ready").touch(); time.sleep(600)',
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))",
    )
    run = start(tmp_path, clean_environment, "--emergency-checkpoint", "train.py")
    assert wait_for((tmp_path / "ready").exists)
    os.kill(run.pid, signal.SIGTERM)
    run.communicate(timeout=120)
    assert run.returncode == 4
    assert checkpoints(tmp_path) == []


def test_a_full_disk_is_one_line_and_hides_nothing(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    script(tmp_path, 'raise ValueError("boom")', size=200_000, own=False)  # 3 MB of state
    done = on_a_small_disk(
        tmp_path, clean_environment, "$0 -m gpurun --emergency-checkpoint train.py"
    )
    assert done.returncode == 1
    lines = done.stderr.decode().splitlines()
    assert "ValueError: boom" in lines
    assert "gpurun: no emergency checkpoint: No space left on device" in lines
    assert sum("emergency" in line for line in lines) == 1
    assert lines[-1].startswith("verdict=failed exit=1")


@pytest.mark.slow
def test_one_of_several_ranks_saves(tmp_path: Path, gpurun: Gpurun) -> None:
    script(tmp_path, 'raise ValueError("boom")', own=False)
    done = gpurun("--nproc-per-node", "2", "--emergency-checkpoint", "train.py")
    assert done.returncode == 1
    assert saved(tmp_path)["optimizer_steps"] >= [5]


@pytest.mark.slow  # quick twin: a signal ends the script as ever, above
def test_a_sigterm_to_two_ranks_leaves_one_whole_checkpoint(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    ready = 'pathlib.Path("ready-" + os.environ["RANK"]).touch(); time.sleep(600)'
    script(tmp_path, ready, own=False)
    words = ("--nproc-per-node", "2", "--emergency-checkpoint", "train.py")
    run = start(tmp_path, clean_environment, *words)
    assert wait_for(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
    os.kill(run.pid, signal.SIGTERM)
    _, err = run.communicate(timeout=120)
    assert run.returncode == 128 + signal.SIGTERM, err.decode()
    assert err.count(b"emergency checkpoint: ") == 1
    contents = saved(tmp_path)
    assert (contents["cause"], contents["optimizer_steps"]) == ("SIGTERM", [5])
