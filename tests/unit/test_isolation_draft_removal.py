"""Half-written files of killed processes are removed, and no others."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from gpurun.isolation.folder_removal import OLD_SECONDS, remove_drafts, sweep_drafts
from gpurun.isolation.isolation_mode import Mode
from gpurun.records.spec import DRAFT
from gpurun.rundir import write_json
from gpurun.trials.trial_launcher import TrialLauncher

KILLED, NEXT = "20260101-000000-abcdef", "20260101-000001-abcdef"
NAME = ".gpurun-draft-0123456789abcdef"


def draft(path: Path, seconds: float = 2 * OLD_SECONDS) -> Path:
    """A file that nobody has changed for so long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{")
    changed = path.stat().st_mtime - seconds
    os.utime(path, (changed, changed))
    return path


def test_a_draft_has_the_name_that_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", lambda *_: None)  # as if it was killed before
    write_json(tmp_path / "result.json", {})
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(DRAFT)


def test_a_young_draft_one_in_use_and_a_whole_file_stay(tmp_path: Path) -> None:
    young = draft(tmp_path / NAME, seconds=1)
    used = draft(tmp_path / ".gpurun-draft-emergency.pt")
    whole = draft(tmp_path / "trial.json")
    gone = draft(tmp_path / ".gpurun-draft-restart1-emergency.pt")
    with used.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        remove_drafts([tmp_path, tmp_path / "nowhere"])
    assert young.exists()
    assert used.exists()
    assert whole.exists()
    assert not gone.exists()


def test_a_file_of_the_users_that_is_named_as_other_programs_name_drafts_stays(
    tmp_path: Path,
) -> None:
    names = (".lr.3.abc123", "emergency.pt.new")
    users = [
        draft(tmp_path / folder / name) for folder in ("tuned", f"runs/{KILLED}") for name in names
    ]
    (tmp_path / "runs" / NEXT).mkdir()
    sweep_drafts(tmp_path / "runs" / NEXT)
    assert all(path.exists() for path in users)


def test_a_run_removes_the_drafts_beside_its_folder_too(tmp_path: Path) -> None:
    left = [draft(tmp_path / name / NAME) for name in ("tuned", "probes", "benchmarks/accepted")]
    own = draft(tmp_path / "runs" / NEXT / NAME, seconds=1)
    foreign = draft(tmp_path / "my-own" / NAME)
    sweep_drafts(own.parent)
    assert not any(path.exists() for path in (*left, own))
    assert foreign.exists()


def test_a_tuning_removes_the_drafts_of_killed_trials(tmp_path: Path) -> None:
    trial = tmp_path / KILLED / "trials" / "01"
    left = [draft(trial / NAME), draft(trial / "control" / NAME)]
    TrialLauncher(tmp_path / NEXT, Mode.IN_PLACE).close()
    assert not any(path.exists() for path in left)


def test_a_draft_behind_a_link_or_of_somebody_elses_stays(tmp_path: Path) -> None:
    mine = draft(tmp_path / "mine" / NAME)
    trial = tmp_path / KILLED
    trial.mkdir()
    (trial / "trials").symlink_to(tmp_path)
    (tmp_path / "20260101-000002-abcdef").symlink_to(tmp_path / "mine")
    TrialLauncher(tmp_path / NEXT, Mode.IN_PLACE).close()
    assert mine.exists()
    if os.getuid() == 0:
        others = draft(tmp_path / NAME)
        os.chown(others, 12345, 12345)
        remove_drafts([tmp_path])
        assert others.exists()
