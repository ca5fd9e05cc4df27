"""Sides of a live pair that fail, hang, block or wait; and launchers that are gone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from gpurun.pairs import side as side_module
from gpurun.pairs.side import PairFailed, Side, SideEnded, await_both, tree_below
from gpurun.pairs.turn_taking import take_turns
from gpurun.records.messages.turns import ANSWERS, Turn
from gpurun.trials.turn_fifos import make_fifos
from scripts.kill_launchers import LAUNCHER, SIDE, killed_after, left_behind
from tests.conftest import REPOSITORY
from tests.integration.launched import wait_for
from tests.integration.live_sides import Sides, state

pytestmark = pytest.mark.forked

# Plain gradient descent: torch's optimizers take seconds to import.
TRAIN = """
import os, signal, subprocess, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
{before}
def main():
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 2)
    loader = DataLoader(TensorDataset(torch.randn(4096, 8)), batch_size=8, **{loader})
    done = 0
    while True:
        for (x,) in loader:
            time.sleep(0.002)
            model(x).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
            done += 1
            {each_step}
if __name__ == "__main__":
    main()
"""
SHORT_NS = 30_000_000


def script(
    folder: Path, name: str, each_step: str = "", before: str = "", loader: str = "{}"
) -> str:
    """Write a training script to which something happens; its name."""
    text = TRAIN.format(before=before, loader=loader, each_step=each_step or "pass")
    (folder / f"{name}.py").write_text(text)
    return f"{name}.py"


def failure_of(sides: Sides, folder: Path, each_step: str, patience: float = 60.0) -> SideEnded:
    """How a pair ends whose first side does this at a step in its turns."""
    bad = sides.run("bad", script(folder, "bad", each_step), patience=patience)
    good = sides.launch("good", 0.002)
    await_both((bad, good))
    with pytest.raises(SideEnded) as raised:
        take_turns((bad, good), random.Random(0), lambda rounds: False)
    return raised.value


@pytest.mark.parametrize(
    ("each_step", "code"),
    [
        pytest.param("if done == 40: os.kill(os.getpid(), signal.SIGKILL)", 137, id="killed"),
        pytest.param(
            "if done == 40: raise RuntimeError('no')", 1, id="raises", marks=pytest.mark.slow
        ),
        pytest.param("if done == 40: return", 0, id="runs out of data", marks=pytest.mark.slow),
    ],
)
def test_a_side_that_ends_in_its_turn_names_itself(
    sides: Sides, tmp_path: Path, each_step: str, code: int
) -> None:
    failure = failure_of(sides, tmp_path, each_step)
    assert (failure.name, failure.exit_code) == ("bad", code)


@pytest.mark.slow  # quick twin: the blocked side below
def test_a_side_that_hangs_in_its_turn_is_given_up(sides: Sides, tmp_path: Path) -> None:
    failure = failure_of(sides, tmp_path, "if done == 40: time.sleep(1000)", patience=20.0)
    assert (failure.name, failure.exit_code) == ("bad", None)
    assert "no sign of life" in str(failure)


HELPER = """
import fcntl, time
with open("lock", "w") as file:
    while True:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(0.3)
        fcntl.flock(file, fcntl.LOCK_UN)
        time.sleep(0.01)
"""
LOCK = """
import fcntl
lock = open("lock", "w")
"""


def test_a_side_that_waits_for_what_its_frozen_partner_holds_is_reported(
    sides: Sides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_module, "BLOCKED_SECONDS", 1.0)
    (tmp_path / "helper.py").write_text(HELPER)
    with_helper = "subprocess.Popen([sys.executable, 'helper.py'], start_new_session=True)"
    holder = sides.run("holder", script(tmp_path, "holder", before=with_helper))
    take_lock = "fcntl.flock(lock, fcntl.LOCK_EX); fcntl.flock(lock, fcntl.LOCK_UN)"
    waiter = sides.run("waiter", script(tmp_path, "waiter", take_lock, before=LOCK))
    await_both((holder, waiter))
    with pytest.raises(PairFailed, match="waiter stood still, twice, while holder was frozen"):
        take_turns((holder, waiter), random.Random(0), lambda rounds: len(rounds) == 50)


@pytest.mark.slow
def test_one_long_step_is_not_taken_for_a_wait(
    sides: Sides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compilation or an evaluation may end just after the partner was thawed."""
    monkeypatch.setattr(side_module, "BLOCKED_SECONDS", 1.0)
    slow = sides.run("slow", script(tmp_path, "slow", "if done == 30: time.sleep(1.5)"))
    quick = sides.run("quick", script(tmp_path, "quick"))
    await_both((slow, quick))
    rounds = take_turns((slow, quick), random.Random(0), lambda rounds: len(rounds) == 50)
    assert len(rounds) == 50


@pytest.mark.slow  # quick twin: the long step above
def test_a_side_that_computes_is_not_taken_for_one_that_waits(
    sides: Sides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on a busy machine: slow turns ended just after the partner was thawed, twice."""
    monkeypatch.setattr(side_module, "BLOCKED_SECONDS", 0.3)
    busy = "until = time.process_time() + 0.2\nwhile time.process_time() < until: pass"
    slow = sides.run("slow", script(tmp_path, "slow", f"if done % 5 == 0: exec({busy!r})"))
    quick = sides.run("quick", script(tmp_path, "quick"))
    await_both((slow, quick))
    monkeypatch.setattr(quick, "thaw", lambda: pytest.fail("the partner stays frozen"))
    rounds = take_turns((slow, quick), random.Random(0), lambda rounds: len(rounds) == 8)
    assert len(rounds) == 8


@pytest.mark.slow  # quick twin: the workers of test_live_pair.py
def test_a_script_that_handles_sigcont_and_workers_with_a_timeout_survive_a_freeze(
    sides: Sides, tmp_path: Path
) -> None:
    noted = "signal.signal(signal.SIGCONT, lambda *_: open('continued', 'a').write('x'))"
    patient = "dict(num_workers=2, timeout=1)"
    pair = (
        sides.run("first", script(tmp_path, "first", before=noted, loader=patient)),
        sides.run("second", script(tmp_path, "second", loader=patient)),
    )
    await_both(pair)
    time.sleep(3)  # longer than the workers' timeout
    rounds = take_turns(pair, random.Random(0), lambda rounds: len(rounds) == 5)
    assert all(r.first.steps and r.second.steps for r in rounds)
    assert (tmp_path / "continued").exists()


@pytest.mark.slow  # quick twin: the workers of test_live_pair.py
def test_workers_in_sessions_of_their_own_are_frozen_with_their_side(
    sides: Sides, tmp_path: Path
) -> None:
    apart = "dict(num_workers=2, worker_init_fn=lambda _: os.setsid())"
    side = sides.run("only", script(tmp_path, "only", loader=apart))
    side.await_ready()
    side.freeze()
    everyone = [sides.sandboxes[0].pid, *tree_below(sides.sandboxes[0].pid)]
    assert len({os.getsid(pid) for pid in everyone}) >= 3
    assert wait_for(lambda: all(state(pid) == "T" for pid in everyone), 10)


@pytest.mark.slow  # quick twin: the workers of test_live_pair.py
def test_a_helper_whose_parent_has_left_is_frozen_with_its_side(
    sides: Sides, tmp_path: Path
) -> None:
    leaving = "import os, time; os.fork() and os._exit(0); time.sleep(600)"
    begun = f"subprocess.run([sys.executable, '-c', {leaving!r}])"
    side = sides.run("only", script(tmp_path, "only", before="import subprocess, sys; " + begun))
    side.await_ready()
    sandbox = sides.sandboxes[0]
    assert sandbox.adopter is not None
    apart = set(tree_below(sandbox.adopter)) - {sandbox.pid, *tree_below(sandbox.pid)}
    (helper,) = apart
    side.freeze()
    assert wait_for(lambda: state(helper) == "T", 10)
    side.thaw()
    assert wait_for(lambda: state(helper) == "S", 10)


@pytest.mark.slow  # quick twin: the slower side of test_live_pair.py
def test_what_a_side_is_frozen_for_does_not_count_as_its_silence(
    sides: Sides, tmp_path: Path
) -> None:
    first = sides.run("first", script(tmp_path, "first"), patience=15.0)
    second = sides.run("second", script(tmp_path, "second"), patience=15.0)
    await_both((first, second))
    began = time.monotonic()
    while time.monotonic() < began + 17.0:
        first.take(SHORT_NS, second)
    assert second.take(SHORT_NS, first).steps


def test_torchs_watchdog_is_told_of_the_freeze(sides: Sides, tmp_path: Path) -> None:
    group = """
import torch.distributed as dist
store = "file://" + os.path.abspath("store")
dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
open("patience", "w").write(os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"])
"""
    side = sides.run("rank", script(tmp_path, "rank", before=group))
    other = sides.launch("other", 0.002)
    await_both((side, other))
    assert take_turns((side, other), random.Random(0), lambda rounds: len(rounds) == 3)
    assert int((tmp_path / "patience").read_text()) >= 3600


@pytest.mark.parametrize(
    "number", [1, *(pytest.param(more, marks=pytest.mark.slow) for more in (0, *range(2, 8)))]
)
def test_a_launcher_killed_at_any_moment_leaves_nothing_behind(number: int) -> None:
    moment = random.uniform(0, 1.0)
    assert killed_after(moment, while_in_turns=bool(number % 2)) == [], f"after {moment} s"


def test_ctrl_c_in_a_turn_ends_both_sides(tmp_path: Path) -> None:
    (tmp_path / "side.py").write_text(SIDE)
    words = [sys.executable, "-c", LAUNCHER, str(REPOSITORY), str(tmp_path)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        assert len(left_behind(tmp_path)) > 6  # the launcher, and two sides with two helpers each
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(60) != 0
    assert wait_for(lambda: not left_behind(tmp_path), 30)


class Here:
    """This very process, as the launched one of a side."""

    pid = os.getpid()
    adopter: int | None = None

    def poll(self) -> int | None:
        return None


def test_several_processes_that_answer_are_no_side(tmp_path: Path) -> None:
    make_fifos(tmp_path)
    with closing(Side("first", Here(), tmp_path, 10.0)) as one:
        answers = os.open(tmp_path / ANSWERS, os.O_RDWR)
        os.write(answers, Turn(0, 0).line() * 2)
        os.close(answers)
        with pytest.raises(PairFailed, match="several processes of first train"):
            one.await_ready()
