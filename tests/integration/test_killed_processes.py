"""Any process of a trial may be killed from outside: it is one clear row, and nothing stays."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.kill_orphans import parent_of
from gpurun.isolation.sandbox import LaunchSpec, Sandbox
from gpurun.launch.launch_command import child_environment
from gpurun.pairs.side import SideEnded, await_both, tree_below
from gpurun.pairs.turn_ratio import Round
from gpurun.pairs.turn_taking import take_turns
from gpurun.trials.prestart import Prestarted
from tests.integration.isolation_launcher import gone_within, processes_with
from tests.integration.launched import DEADLINE_SECONDS, ORPHAN_SECONDS, alive, start, wait_for
from tests.integration.live_sides import Sides, state
from tests.integration.tunings import report_of, training


def of_script(side: Sandbox) -> int:
    return side.pid


def of_worker(side: Sandbox) -> int:
    return tree_below(side.pid)[0]


def of_supervisor(side: Sandbox) -> int:
    assert side.adopter is not None
    above = parent_of(side.adopter)
    assert above is not None
    return above


@pytest.mark.parametrize(
    ("victim", "code"),
    [
        pytest.param(of_script, 137, id="script"),
        # quick twin: its script
        pytest.param(of_worker, 1, id="worker", marks=pytest.mark.slow),
        pytest.param(of_supervisor, 137, id="supervisor", marks=pytest.mark.slow),
    ],
)
def test_a_kill_in_a_frozen_side_of_a_live_pair_names_the_side_and_leaves_nothing_frozen(
    sides: Sides, victim: Callable[[Sandbox], int], code: int
) -> None:
    pair = sides.launch("hit", workers=1), sides.launch("other", workers=1)
    await_both(pair)
    everyone = [p for box in sides.sandboxes for p in (box.pid, *tree_below(box.pid))]
    assert len(everyone) >= 4
    assert wait_for(lambda: all(state(pid) == "T" for pid in everyone), 10)

    def kill_after_three(rounds: Sequence[Round]) -> bool:
        if len(rounds) == 3:
            os.kill(victim(sides.sandboxes[0]), signal.SIGKILL)
        return False

    with pytest.raises(SideEnded) as raised:
        take_turns(pair, random.Random(0), kill_after_three)
    assert (raised.value.name, raised.value.exit_code) == ("hit", code)
    for side, sandbox in zip(pair, sides.sandboxes, strict=True):
        side.thaw()  # as its end does
        sandbox.close()
    assert wait_for(lambda: not any(map(alive, everyone)), ORPHAN_SECONDS)


def test_a_waiting_process_that_is_killed_is_replaced_when_its_turn_comes(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").touch()
    run_dir = tmp_path / "run"
    environment = child_environment(run_dir / "spec.json", clean_environment)
    argv = (sys.executable, "train.py", str(tmp_path))
    log = tmp_path / "output.log"
    spec = LaunchSpec(argv, environment, tmp_path, (run_dir,), (), Mode.IN_PLACE, log)
    prestarted = Prestarted()
    prestarted.modules = ("json",)
    for kill in (True, False):
        prestarted.start(spec, run_dir)
        prestarted.stop()
        if kill:
            os.kill(prestarted.pids[0], signal.SIGKILL)
            assert wait_for(lambda: not prestarted._fits(spec, run_dir), ORPHAN_SECONDS)
        prestarted.go_on()
        taken = prestarted.take(spec, run_dir)
        assert (taken is None) is kill
        assert run_dir.exists() is not kill
        if taken is not None:
            taken.close()
    assert gone_within(str(tmp_path), ORPHAN_SECONDS)


@pytest.mark.slow  # quick twin: a signal to the launcher, in test_optimize_interrupted.py
def test_a_kill_of_the_first_trial_ends_the_tuning_and_says_who_failed(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    marker = f"{time.monotonic_ns()}"
    (tmp_path / "train.py").write_text(training(5000, sleep=0.003))
    launcher = start(tmp_path, clean_environment, "--optimize", "--tune-only", "train.py", marker)
    assert wait_for(lambda: bool(list(tmp_path.glob(".gpurun/runs/*/trials/01/events-*"))))
    (victim,) = set(processes_with(marker)) - {launcher.pid}
    os.kill(victim, signal.SIGKILL)
    _, err = launcher.communicate(timeout=DEADLINE_SECONDS)
    said = err.decode().splitlines()
    assert launcher.returncode == 5, said
    row, reason, summary = [line for line in said if "killed from outside (SIGKILL)" in line]
    assert row.startswith("gpurun: script as it is: ")
    assert reason.startswith("gpurun: a trial of the script as it is: killed ")
    assert reason.endswith("; tune again")
    assert summary.startswith("gpurun: The script failed as it is; nothing was tuned: killed ")
    assert said[-1].startswith("verdict=script_failed exit=5")
    (trial,) = report_of(tmp_path)["trials"]
    assert (trial["status"], trial["failure"]) == ("killed", "killed")
    assert gone_within(marker, ORPHAN_SECONDS)
