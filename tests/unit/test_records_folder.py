"""The folder of records: what lies there may have come with a repository or an archive."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpurun.arguments import settings_file
from gpurun.errors import GpurunError
from gpurun.records.codec import to_json
from gpurun.records.tuning import SavedSettings
from gpurun.rundir import (
    OWN_FOLDERS,
    _state_folder,
    check_output,
    existing_home,
    find_home,
    kept_run,
    new_run,
    of_surroundings,
    write_output,
    write_whole,
)
from tests.conftest import Gpurun
from tests.integration.isolation_launcher import open_folder, tree
from tests.repositories import commit, git, new_repository
from tests.unit.report_records import run_result

RUN = "20260101-000000-aaaaaa"
OTHER_USER = 12345


@pytest.fixture(autouse=True)
def _nobodys_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPURUN_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that other users can reach."""
    with open_folder() as folder:
        yield folder


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder of the user's that links lead to."""
    folder = tmp_path / "mine"
    for name in ("page", RUN, "accepted"):
        (folder / name).mkdir(parents=True)
    (folder / "page" / "file").write_text("mine")
    result = run_result(command=("train.py",))
    (folder / RUN / "result.json").write_text(json.dumps(to_json(result)))
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print('trained')\n")
    return folder


@pytest.mark.parametrize("name", [".", "runs", *OWN_FOLDERS])
def test_no_folder_of_records_may_be_a_link(
    project: Path, mine: Path, gpurun: Gpurun, name: str
) -> None:
    link = project / ".gpurun" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(mine)
    before = tree(mine)
    for find in (find_home, existing_home):
        with pytest.raises(GpurunError, match=f"{link} is a link"):
            find(project)
    if name in (".", "runs"):
        for words in (["train.py"], ["report"]):
            done = gpurun(*words, cwd=project)
            assert done.returncode == 2
            assert b"is a link" in done.stderr.splitlines()[0]
            assert b"trained" not in done.stdout
    assert tree(mine) == before


def test_a_folder_that_the_user_names_may_be_reached_by_a_link(tmp_path: Path, mine: Path) -> None:
    (tmp_path / "records").symlink_to(mine)
    assert find_home(tmp_path, "records") == mine
    assert (mine / "runs").is_dir()


@pytest.mark.parametrize("out", [None, "records"])
def test_records_that_came_with_the_repository_are_refused(
    project: Path, tmp_path: Path, gpurun: Gpurun, out: str | None
) -> None:
    new_repository(tmp_path / "origin")
    commit(tmp_path / "origin", {f"{out or '.gpurun'}/tuned/0123456789abcdef.json": "{}"})
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "origin", "clone")
    (clone / "train.py").write_text("print('trained')\n")
    flags = ["--out", out] if out else []
    before = tree(clone / (out or ".gpurun"))
    done = gpurun(*flags, "train.py", cwd=clone)
    assert done.returncode == 2
    what, todo = done.stderr.decode().splitlines()[:2]
    assert what.startswith(f"gpurun: git tracks files in {clone / (out or '.gpurun')}")
    assert "git rm -r --cached" in todo
    assert tree(clone / (out or ".gpurun")) == before
    git(clone, "rm", "-r", "-q", "--cached", out or ".gpurun")
    assert gpurun(*flags, "train.py", cwd=clone).returncode == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of others")
def test_root_refuses_what_came_with_another_users_repository_and_runs_none_of_its_programs(
    tmp_path: Path, open_path: Path
) -> None:
    folder = new_repository(open_path / "project")
    commit(folder, {".gpurun/tuned/0123456789abcdef.json": "{}"})
    git(folder, "config", "core.fsmonitor", f"touch {tmp_path}/ran; false")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, OTHER_USER, OTHER_USER)
    with pytest.raises(GpurunError, match="git tracks files"):
        find_home(folder)
    assert not (tmp_path / "ran").exists()


def refused_to(user: int, folder: Path) -> str:
    """Why this user gets no folder of records there."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        try:
            find_home(folder)
        except GpurunError as error:
            os.write(writer, error.what.encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as told:
        return told.read()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("obeyed", [True, False])
def test_a_user_refuses_what_came_with_another_users_repository_and_runs_none_of_its_programs(
    open_path: Path, obeyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git answers a user about another one's repository only where it is told to."""
    folder = new_repository(open_path / "project")
    commit(folder, {".gpurun/tuned/0123456789abcdef.json": "{}"})
    git(folder, "config", "core.fsmonitor", f"touch {open_path}/ran; false")
    open_path.chmod(0o777)
    programs = open_path / "bin"
    programs.mkdir()
    if not obeyed:  # as before git 2.38
        own = f'#!/bin/sh\nexec {shutil.which("git")} "$1" "$2" "$5" "$6" ls-files -z .\n'
        (programs / "git").write_text(own)
        (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(open_path))
    said = "git tracks files" if obeyed else "git does not say whether it tracks"
    assert refused_to(OTHER_USER, folder).startswith(said)
    assert not (open_path / "ran").exists()


def test_records_in_a_repository_that_gpurun_made_itself_are_used(tmp_path: Path) -> None:
    folder = new_repository(tmp_path / "project")
    commit(folder, {"sub/train.py": ""})
    for _ in range(2):
        assert find_home(folder / "sub") == folder / "sub" / ".gpurun"
    assert git(folder, "status", "--porcelain", "--untracked-files=all") == ""


@pytest.mark.parametrize("home", ["", "relative", "~"])
def test_an_empty_or_relative_home_counts_as_unset(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.setenv("XDG_STATE_HOME", home)
    entry = SimpleNamespace(pw_dir=str(tmp_path))
    monkeypatch.setattr("pwd.getpwuid", lambda uid: entry)
    assert _state_folder() == tmp_path / ".local/state/gpurun"


@pytest.mark.parametrize("entry", ["", "/nonexistent"])
def test_a_home_that_is_missing_is_not_made(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", entry)
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_dir=entry))
    with pytest.raises(FileNotFoundError, match="no home folder"):
        _state_folder()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of others")
def test_records_of_another_user_in_a_folder_for_all_are_not_used(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared"
    (shared / ".gpurun").mkdir(parents=True, mode=0o777)
    os.chown(shared / ".gpurun", OTHER_USER, OTHER_USER)
    own = tmp_path / "state" / "gpurun"
    assert find_home(shared) == own
    assert existing_home(shared) == own
    os.chown(shared, OTHER_USER, OTHER_USER)  # a project of theirs, as in a container
    assert find_home(shared) == existing_home(shared) == shared / ".gpurun"


def test_a_run_folder_stays_only_if_something_was_written_there(tmp_path: Path) -> None:
    with kept_run(tmp_path) as kept:
        (kept / "setup-current.log").touch()
    with pytest.raises(KeyboardInterrupt), kept_run(tmp_path):
        raise KeyboardInterrupt
    assert list((tmp_path / "runs").iterdir()) == [kept]


def test_a_page_is_not_written_through_a_link(project: Path, mine: Path, gpurun: Gpurun) -> None:
    run = new_run(find_home(project))
    (run / "result.json").write_bytes((mine / RUN / "result.json").read_bytes())
    (run / "report.html").symlink_to(mine / "page" / "file")
    (project / "link").symlink_to(mine / RUN)
    (run.parent / "20990101-000000-aaaaaa").symlink_to(mine / RUN)
    before = tree(mine)
    assert gpurun("report", cwd=project).returncode == 0
    assert b"is a link" in gpurun("report", "link", cwd=project).stderr
    assert "<html" in (run / "report.html").read_text()
    assert not (run / "report.html").is_symlink()
    assert tree(mine) == before


def test_settings_that_a_tuning_keeps_replace_a_link(project: Path, mine: Path) -> None:
    place = find_home(project) / "tuned" / "0123456789abcdef.json"
    place.parent.mkdir()
    place.symlink_to(mine / "page" / "file")
    settings_file.save(place, SavedSettings(settings={}, training_loaders=(), speedup=None,
                                            fingerprint={}, command=()))  # fmt: skip
    assert not place.is_symlink()
    assert (mine / "page" / "file").read_text() == "mine"


def test_an_ignore_file_is_not_written_through_a_link(project: Path, mine: Path) -> None:
    (project / ".gpurun").mkdir()
    (project / ".gpurun" / ".gitignore").symlink_to(mine / "new")
    assert find_home(project) == project / ".gpurun"
    assert (project / ".gpurun" / ".gitignore").read_text() == "*\n"
    assert not (mine / "new").exists()


def test_a_folder_that_the_user_had_gets_no_ignore_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.setenv("GPURUN_HOME", str(tmp_path))
    assert find_home(tmp_path) == tmp_path
    assert not (tmp_path / "runs" / ".gitignore").exists()
    assert (tmp_path / "tuned" / ".gitignore").exists()


def test_an_ignore_file_with_a_second_name_is_not_written_into(project: Path, mine: Path) -> None:
    (mine / "empty").touch()
    (project / ".gpurun").mkdir()
    os.link(mine / "empty", project / ".gpurun" / ".gitignore")
    find_home(project)
    assert (project / ".gpurun" / ".gitignore").read_text() == "*\n"
    assert (mine / "empty").read_text() == ""


def test_a_file_that_the_user_names_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    write_output(tmp_path / "link", "text")
    assert (tmp_path / "file").read_text() == "text"
    write_whole(tmp_path / "link", "own")
    assert (tmp_path / "file").read_text() == "text"
    assert (tmp_path / "link").read_text() == "own"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_a_quota_and_a_limit_of_size_are_told_alike(number: int) -> None:
    told = of_surroundings(OSError(number, os.strerror(number), "/x/.gpurun/bench.db"))
    assert told is not None
    assert told.what.startswith("records cannot be written to /x/.gpurun/bench.db")


def test_a_record_that_moves_while_it_is_read_is_told_and_other_files_are_not() -> None:
    full = of_surroundings(FileNotFoundError(errno.ENOENT, "No usable temporary directory found"))
    assert full is not None
    assert full.todo == "make room there, or set TMPDIR"
    gone = of_surroundings(FileNotFoundError(errno.ENOENT, "", "/x/.gpurun/runs/a/report.html"))
    assert gone is not None
    assert gone.what == "/x/.gpurun/runs/a/report.html is gone: somebody removed it"
    assert of_surroundings(FileNotFoundError(errno.ENOENT, "", "/x/other")) is None


def test_a_script_is_not_written_over_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "page.html").symlink_to("train.py")
    with pytest.raises(GpurunError, match="would be written over"):
        check_output("--html", tmp_path / "page.html")
