"""What killed processes leave below the folder of records, and what a new one may remove of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpurun.isolation.available_modes import PROBE_FOLDER, probe_folder
from gpurun.isolation.isolation_mode import Mode
from gpurun.probing import gradient_probe
from gpurun.trials.trial_launcher import SHARED, TrialLauncher
from tests.conftest import REPOSITORY

HOLDER = """
import sys, time
from pathlib import Path

import pytest
sys.path.insert(0, sys.argv[1])
from gpurun.isolation.folder_removal import hold
hold(Path(sys.argv[2]))
print(flush=True)
time.sleep(600)
"""
KILLED, OTHER = "20260101-000000-abcdef", "20260101-000001-abcdef"


def holder(folder: Path) -> subprocess.Popen[bytes]:
    """A process that holds a folder."""
    words = [sys.executable, "-c", HOLDER, str(REPOSITORY), str(folder)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    return process


def killed(process: subprocess.Popen[bytes]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def test_what_a_killed_tuning_shared_goes_with_the_next_one(tmp_path: Path) -> None:
    layer = tmp_path / KILLED / SHARED / "script" / "layer"
    layer.mkdir(parents=True)
    (tmp_path / KILLED / "trials").mkdir()
    process = holder(tmp_path / KILLED)
    TrialLauncher(tmp_path / OTHER, Mode.IN_PLACE).close()
    assert layer.exists(), "its owner lives"
    killed(process)
    TrialLauncher(tmp_path / OTHER, Mode.IN_PLACE).close()
    assert [path.name for path in (tmp_path / KILLED).iterdir()] == ["trials"]


def test_a_launcher_holds_its_own_folder(tmp_path: Path) -> None:
    with_layer = TrialLauncher(tmp_path / KILLED, Mode.IN_PLACE)
    (tmp_path / KILLED / SHARED).mkdir()
    TrialLauncher(tmp_path / OTHER, Mode.IN_PLACE).close()
    assert (tmp_path / KILLED / SHARED).exists()
    with_layer.close()
    assert not (tmp_path / KILLED / SHARED).exists()


def test_a_folder_of_the_users_beside_runs_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "experiment" / SHARED).mkdir(parents=True)
    (tmp_path / "my-own-runs" / SHARED).mkdir(parents=True)
    TrialLauncher(tmp_path / OTHER, Mode.IN_PLACE).close()
    assert (tmp_path / "experiment" / SHARED).exists()
    assert (tmp_path / "my-own-runs" / SHARED).exists()


def test_what_a_killed_probe_left_goes_with_the_next_one(tmp_path: Path) -> None:
    left, own = tmp_path / "0123456789abcdef.77", tmp_path / "notes.1"
    for folder in (left, own):
        folder.mkdir()
    process = holder(tmp_path)
    os.close(gradient_probe._begin(tmp_path))
    assert left.exists(), "somebody measures, and this may be its folder"
    killed(process)
    os.close(gradient_probe._begin(tmp_path))
    assert not left.exists()
    assert own.exists()


def test_a_folder_to_try_the_isolation_in_goes_with_the_next_once_its_launcher_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    used, left = tmp_path / f"{PROBE_FOLDER}used", tmp_path / f"{PROBE_FOLDER}left"
    for folder in (used, left):
        folder.mkdir()
        os.utime(folder, (0, 0))
    process = holder(used)
    with probe_folder() as own:
        assert sorted(tmp_path.iterdir()) == sorted((own, used))
    killed(process)
    assert list(tmp_path.iterdir()) == [used]
