"""A full run starts from what its tuning compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.commands.optimize import _kept_kernels
from gpurun.isolation.isolation_mode import Mode
from gpurun.launch.compile_caches import KERNELS, kernels_in
from gpurun.trials.trial_launcher import KEPT, SHARED, TrialLauncher

LATER = "20261130-041357-70fee7"
"""The run folder of another tuning."""
SEEN = f"import os; print(os.environ.get({KERNELS!r}))"


def launched() -> str:
    return subprocess.run(
        [sys.executable, "-c", SEEN], capture_output=True, check=True, text=True
    ).stdout.strip()


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run folder of a tuning that has compiled something, and is over."""
    monkeypatch.delenv(KERNELS, raising=False)
    run = tmp_path / "runs" / "20261130-041356-70fee6"
    launcher = TrialLauncher(run, Mode.IN_PLACE)
    made = kernels_in(run / SHARED / "script" / "cache")
    made.mkdir(parents=True)
    (made / "kernel.py").write_text("")
    launcher.keep_kernels()
    launcher.close()
    return run


def test_it_finds_the_kernels_and_nothing_of_them_is_left(tuned: Path) -> None:
    assert not (tuned / SHARED).exists()
    with _kept_kernels(tuned):
        assert launched() == str(tuned / KEPT)
        assert (tuned / KEPT / "kernel.py").exists()
        TrialLauncher(tuned.parent / LATER, Mode.IN_PLACE).close()
        assert (tuned / KEPT).exists(), "another tuning that begins leaves it alone"
    assert launched() == "None"
    assert not (tuned / KEPT).exists()


def test_a_folder_of_the_users_own_stays(tuned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS, "/own")
    with _kept_kernels(tuned):
        assert launched() == "/own"
        assert not (tuned / KEPT).exists()
    assert os.environ[KERNELS] == "/own"


def test_where_nothing_was_compiled_nothing_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KERNELS, raising=False)
    launcher = TrialLauncher(tmp_path, Mode.IN_PLACE)
    launcher.keep_kernels()
    launcher.close()
    with _kept_kernels(tmp_path):
        assert launched() == "None"


def test_what_a_killed_tuning_left_is_removed_by_the_next(tuned: Path) -> None:
    TrialLauncher(tuned.parent / LATER, Mode.IN_PLACE).close()
    assert not (tuned / KEPT).exists()
