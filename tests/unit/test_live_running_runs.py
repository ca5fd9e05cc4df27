"""Runs whose launcher lives are found; finished, crashed and foreign ones are not."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from gpurun.launch.launch_command import write_spec
from gpurun.measure.machine_state import command_of, running_runs
from gpurun.records.spec import RunSpec

NEVER = 2**22 + 1
"""Above the highest process id."""


def run_of(home: Path, name: str, launcher: object, finished: bool = False) -> Path:
    folder = home / "runs" / name
    folder.mkdir(parents=True)
    if isinstance(launcher, int):
        write_spec(RunSpec(str(folder), launcher))
    else:
        (folder / "spec.json").write_text(json.dumps({"launcher_pid": launcher}))
    if finished:
        (folder / "result.json").write_text("{}")
    return folder


def test_only_running_ones_are_found(tmp_path: Path) -> None:
    second = run_of(tmp_path, "b", os.getpid())
    first = run_of(tmp_path, "a", os.getpid())
    run_of(tmp_path, "finished", os.getpid(), finished=True)
    run_of(tmp_path, "crashed", NEVER)
    run_of(tmp_path, "nonsense", "x")
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "runs" / "file").touch()
    torn = run_of(tmp_path, "torn", os.getpid())
    (torn / "spec.json").write_text('{"launch')
    assert running_runs(tmp_path) == [first, second]
    assert running_runs(tmp_path / "nothing") == []


def test_a_later_process_of_the_same_number_is_not_the_launcher(tmp_path: Path) -> None:
    spec = run_of(tmp_path, "old", os.getpid()) / "spec.json"
    told = json.loads(spec.read_text())
    spec.write_text(json.dumps({**told, "launcher_started": told["launcher_started"] - 1}))
    assert running_runs(tmp_path) == []


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_set_during_a_run_does_not_end_it(tmp_path: Path, hours: int) -> None:
    """The file's time is then an hour off what the clock would say now."""
    folder = run_of(tmp_path, "running", os.getpid())
    moment = time.time() + 3600 * hours
    os.utime(folder / "spec.json", (moment, moment))
    assert running_runs(tmp_path) == [folder]


def test_the_command_of_a_process() -> None:
    assert command_of(os.getpid()) == " ".join(sys.orig_argv)
    assert command_of(NEVER) is None
