"""What killed processes leave, and what a new one may remove of it: nothing but gpurun's own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.ddp.verified_reduction import FOLDERS
from gpurun.isolation.available_modes import PROBE_FOLDER, choose, probe_folder
from gpurun.isolation.folder_removal import MARK, discard, mark, scratch_folder
from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.working_copy import copy_written
from gpurun.trials.trial_launcher import SHARED, TrialLauncher
from tests.conftest import REPOSITORY
from tests.integration.isolation_launcher import tree

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
    mark(tmp_path / KILLED / SHARED)
    (tmp_path / KILLED / "trials").mkdir()
    process = holder(tmp_path / KILLED)
    TrialLauncher(tmp_path / OTHER, Mode.IN_PLACE).close()
    assert layer.exists(), "its owner lives"
    killed(process)
    TrialLauncher(tmp_path / OTHER, Mode.IN_PLACE).close()
    assert [path.name for path in (tmp_path / KILLED).iterdir()] == ["trials"]


def test_a_launcher_holds_its_own_folder(tmp_path: Path) -> None:
    with_layer = TrialLauncher(tmp_path / KILLED, Mode.IN_PLACE)
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


def test_what_a_killed_verification_left_goes_with_the_next_one(tmp_path: Path) -> None:
    left, own = tmp_path / f"{FOLDERS}77", tmp_path / "notes-1"
    for folder in (left, own):
        folder.mkdir()
        mark(folder)
        os.utime(folder, (0, 0))
    process = holder(left)
    with scratch_folder(tmp_path, FOLDERS):
        assert left.exists(), "somebody verifies in it"
    killed(process)
    with scratch_folder(tmp_path, FOLDERS) as new:
        assert not left.exists()
    assert not new.exists()
    assert own.exists()


def test_a_folder_to_try_the_isolation_in_goes_with_the_next_once_its_launcher_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    used, left = tmp_path / f"{PROBE_FOLDER}used", tmp_path / f"{PROBE_FOLDER}left"
    for folder in (used, left):
        folder.mkdir()
        mark(folder)
        os.utime(folder, (0, 0))
    process = holder(used)
    with probe_folder() as own:
        assert sorted(tmp_path.iterdir()) == sorted((own, used))
    killed(process)
    assert list(tmp_path.iterdir()) == [used]


def private(folder: Path) -> Path:
    """A folder of the user's, whose modes must stay, too."""
    for name in ("", SHARED, f"{SHARED}/deep"):
        (folder / name).mkdir(parents=True)
        (folder / name).chmod(0o750)
        (folder / name / "mine").write_text("mine")
    return folder


@pytest.mark.parametrize("what", ["the run", "what it shared", "nothing, but it is a copy"])
def test_no_link_and_no_copy_of_a_folder_counts_as_left_behind(tmp_path: Path, what: str) -> None:
    mine, runs = private(tmp_path / "mine"), tmp_path / "runs"
    runs.mkdir()
    if what == "the run":
        mark(mine / SHARED)
        (runs / KILLED).symlink_to(mine)
    elif what == "what it shared":
        (runs / KILLED).mkdir()
        (runs / KILLED / SHARED).symlink_to(mine)
    else:
        mark(mine / SHARED)
        shutil.copytree(mine, runs / KILLED, symlinks=True)
    before = tree(mine), tree(runs / KILLED)
    TrialLauncher(runs / OTHER, Mode.IN_PLACE).close()
    assert (tree(mine), tree(runs / KILLED)) == before


def test_a_removal_takes_links_and_locked_folders_and_nothing_that_links_lead_to(
    tmp_path: Path,
) -> None:
    mine, left = private(tmp_path / "mine"), tmp_path / "left"
    (left / "locked" / "deep").mkdir(parents=True)
    (left / "locked" / "deep" / "file").touch()
    (left / "locked" / "deep" / "link").symlink_to(mine)
    (left / "link").symlink_to(mine / "mine")
    for folder in (left / "locked" / "deep", left / "locked"):
        folder.chmod(0o000)
    link = tmp_path / "another"
    link.symlink_to(mine)
    before = tree(mine)
    discard(left)
    discard(link)
    assert not left.exists()
    assert link.is_symlink()
    assert tree(mine) == before


FILLED = """
import sys, subprocess
from pathlib import Path
from gpurun.isolation.folder_removal import discard
from gpurun.isolation.namespaces import enter_mount_namespace
from gpurun.isolation.syscalls import MS_BIND, mount
left, mine = Path(sys.argv[1]), sys.argv[2]
enter_mount_namespace()
mount(mine, str(left / "data"), flags=MS_BIND)
discard(left)
"""


def test_a_removal_stays_out_of_what_is_mounted_below(tmp_path: Path) -> None:
    """By a setup command, say."""
    mine, left = private(tmp_path / "mine"), tmp_path / "left"
    (left / "data").mkdir(parents=True)
    (left / "made").touch()
    words = [sys.executable, "-c", FILLED, str(left), str(mine)]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=False)
    if done.returncode:
        pytest.skip("no namespaces here")
    assert (mine / "mine").read_text() == "mine"
    assert (mine / SHARED / "deep" / "mine").read_text() == "mine"
    assert not (left / "made").exists()


def test_the_mark_goes_last_so_that_an_interrupted_removal_is_taken_up_again(
    tmp_path: Path,
) -> None:
    left = tmp_path / "left"
    for name in ("a", "b", "c"):
        (left / name).mkdir(parents=True)
    mark(left)
    removed: list[str] = []
    unlink, rmdir = os.unlink, os.rmdir

    def noted(remove: Callable[..., None]) -> Callable[..., None]:
        def note(name: str, **places: int | None) -> None:
            removed.append(os.path.basename(name))
            remove(name, **places)

        return note

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", noted(unlink))
        patch.setattr(os, "rmdir", noted(rmdir))
        discard(left)
    assert removed[-2:] == [MARK, "left"]
    assert not left.exists()


def test_a_folder_that_a_trial_put_in_a_links_place_is_not_copied_behind_the_link(
    tmp_path: Path,
) -> None:
    mine, layer, copy = private(tmp_path / "mine"), tmp_path / "layer", tmp_path / "copy"
    (layer / "data").mkdir(parents=True)
    (layer / "data" / "mine").write_text("the trial's")
    copy.mkdir()
    (copy / "data").symlink_to(mine)
    before = tree(mine)
    copy_written(layer, copy)
    assert tree(mine) == before
    assert (copy / "data" / "mine").read_text() == "the trial's"


KINDS = {
    "file": lambda path: path.write_text("file"),
    "folder": lambda path: (path.mkdir(), (path / "in").write_text("folder")),
    "link": lambda path: path.symlink_to("elsewhere"),
}


@pytest.mark.parametrize("before", KINDS)
@pytest.mark.parametrize("after", KINDS)
def test_what_a_trial_put_in_the_place_of_another_type_is_what_the_next_one_sees(
    tmp_path: Path, before: str, after: str
) -> None:
    layer, copy = tmp_path / "layer", tmp_path / "copy"
    for folder, kind in ((layer, after), (copy, before)):
        folder.mkdir()
        KINDS[kind](folder / "one")
    (copy / "elsewhere").mkdir()
    copy_written(layer, copy)
    one = copy / "one"
    assert (one.is_symlink(), one.is_dir() and not one.is_symlink()) == (
        after == "link", after == "folder",
    )  # fmt: skip
    assert after == "link" or (one / "in" if after == "folder" else one).read_text() == after


def test_the_probe_of_the_isolation_leaves_a_name_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPURUN_ISOLATION", "overlay")
    users = tmp_path / f".gpurun-probe-{os.getpid()}" / "file"
    users.parent.mkdir()
    users.touch()
    choose(tmp_path, in_place=False)
    assert users.exists()
    assert os.listdir(tmp_path) == [users.parent.name]
