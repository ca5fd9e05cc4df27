"""`gpurun blame`: the setting with which a tuned run goes wrong is named."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.integration.tunings import configure, training

pytestmark = pytest.mark.forked

KNOB = '''
"""A knob of the test's own, which sets a variable."""
from gpurun.knobs.api import Effect, Knob, Skip

class Switch(Knob):
    """Sets a variable."""

    name = "NAME"
    effect = Effect.PIPELINE

    def candidates(self, facts):
        return Skip("set by hand")

    def apply(self, value, hooks):
        hooks.applied()

    def environment(self, value):
        return {"SWITCH_NAME": "1"}
'''
TRAINING = """
import os, torch
on = {name for name in "abcd" if f"SWITCH_{name}" in os.environ}
open("written.txt", "a").write("x")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 41):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    if step == 8 and (WRONG):
        EFFECT
    loss.backward()
    optimizer.step()
print("trained with", *sorted(on))
"""


def prepare(folder: Path, wrong: str, effect: str) -> None:
    for name in "abcd":
        (folder / f"knob_{name}.py").write_text(KNOB.replace("NAME", name))
    knobs = ", ".join(f'"knob_{name}.py"' for name in "abcd")
    (folder / "gpurun.toml").write_text(f"knobs = [{knobs}]\n")
    (folder / "s.json").write_text(json.dumps({"settings": dict.fromkeys("abcd", True)}))
    script = TRAINING.replace("WRONG", wrong).replace("EFFECT", effect)
    (folder / "train.py").write_text(script)


def blamed(folder: Path, gpurun: Gpurun, *flags: str) -> tuple[int, dict[str, Any], list[str]]:
    done = gpurun("blame", "--settings", "s.json", "--json", "b.json", *flags, "train.py")
    lines = done.stderr.decode().splitlines()
    assert not (folder / "written.txt").exists()
    report: dict[str, Any] = json.loads((folder / "b.json").read_text())
    return done.returncode, report, lines


@pytest.mark.slow
def test_the_setting_that_crashes_is_named_with_the_way_out(tmp_path: Path, gpurun: Gpurun) -> None:
    prepare(tmp_path, '"c" in on', 'raise ValueError("boom")')
    flags = ("--steps", "20", "--without", "a", "--allow", "pipeline", "--out", "k")
    code, report, lines = blamed(tmp_path, gpurun, *flags)
    assert (code, report["verdict"], report["culprits"]) == (0, "found", [["c"]])
    assert report["without_them"] == "good"
    assert any(x.startswith("gpurun: c goes wrong: ") and "boom" in x for x in lines)
    way_out = "gpurun --settings s.json --allow pipeline --out k --without a,c train.py"
    assert f"gpurun: nothing went wrong in 20 steps with: {way_out}" in lines
    assert lines[-1].startswith("verdict=found exit=0 culprit=c run=")


@pytest.mark.slow  # quick twin: the setting that crashes, above
def test_settings_that_diverge_only_together_are_named_together(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    prepare(tmp_path, '{"a", "d"} <= on', 'loss = loss * float("nan")')
    code, report, lines = blamed(tmp_path, gpurun, "--steps", "20")
    assert (code, report["culprits"]) == (0, [["a", "d"]])
    assert "gpurun: a together with d goes wrong: the loss is not finite at step 8" in lines


@pytest.mark.slow  # quick twin: the setting that crashes, above
def test_a_check_of_the_users_own_judges(tmp_path: Path, gpurun: Gpurun) -> None:
    prepare(tmp_path, "False", "pass")
    log = "$GPURUN_TRIAL/output.log"
    check = f'grep -q trained "{log}" && ! grep -q "with.*b" "{log}"'
    code, report, _ = blamed(tmp_path, gpurun, "--check", check)
    assert (code, report["culprits"]) == (0, [["b"]])


def test_what_does_not_go_wrong_is_not_blamed(tmp_path: Path, gpurun: Gpurun) -> None:
    prepare(tmp_path, "False", "pass")
    code, report, lines = blamed(tmp_path, gpurun, "--steps", "20")
    assert (code, report["verdict"], report["culprits"]) == (3, "not_reproduced", [])
    assert len(report["launches"]) == 2
    assert "gpurun: raise --steps, or name what went wrong with --check" in lines


def test_a_script_that_fails_by_itself_is_no_fault_of_the_settings(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    prepare(tmp_path, "True", 'raise ValueError("boom")')
    code, report, lines = blamed(tmp_path, gpurun)
    assert (code, report["verdict"], len(report["launches"])) == (5, "script_failed", 1)
    assert any("not the settings: the script as it is goes wrong" in line for line in lines)


def test_without_tuned_settings_there_is_nothing_to_blame(
    tmp_path: Path, in_process: Gpurun
) -> None:
    (tmp_path / "train.py").write_text("")
    done = in_process("blame", "train.py")
    assert done.returncode == 2
    assert b"this command was not tuned here yet" in done.stderr
    refused = in_process("blame", "--optimize", "train.py")
    assert b"--optimize is not for blame" in refused.stderr


WORKER_BREAKS = """
import os
from torch.utils.data import get_worker_info
if "BREAK" in os.environ:
    whole = Slow.__getitem__
    def broken(self, index):
        if get_worker_info() is not None:
            raise OSError("the licence is for one process")
        return whole(self, index)
    Slow.__getitem__ = broken
"""


@pytest.mark.slow  # quick twins: the setting that crashes, above; test_settings_refused.py
def test_the_settings_of_a_tuning_are_taken_apart_by_default(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    """From `--optimize` to `blame`, to the command that it names, which works."""
    before, loop = training(100, sleep=0.008, pause=0.01).split("model = ", 1)
    (tmp_path / "train.py").write_text(f"{before}{WORKER_BREAKS}model = {loop}")
    configure(tmp_path, "allow = ['pipeline']\nmax_trials = 4\nbudget = '4m'")
    tuned = gpurun("--optimize", "--tune-only", "train.py")
    assert tuned.returncode == 0, tuned.stderr.decode()
    works = gpurun("--tuned", "train.py")
    assert works.returncode == 0
    assert b"applied loader_workers" in works.stderr
    broken = gpurun("--tuned", "train.py", env={"BREAK": "1"})
    assert broken.returncode == 1
    assert b"OSError: the licence is for one process" in broken.stderr
    done = gpurun("blame", "--steps", "10", "--json", "b.json", "train.py", env={"BREAK": "1"})
    assert done.returncode == 0, done.stderr.decode()
    (names,) = json.loads((tmp_path / "b.json").read_text())["culprits"]
    assert "loader_workers" in names
    (line,) = (x for x in done.stderr.decode().splitlines() if "nothing went wrong in" in x)
    words = shlex.split(line.partition("with: gpurun ")[2])
    assert words == ["--tuned", "--without", ",".join(names), "train.py"]
    assert gpurun(*words, env={"BREAK": "1"}).returncode == 0
