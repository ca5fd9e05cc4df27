"""Worktrees go whatever ends a comparison: by itself, or with the next one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpurun.bench.trees import worktrees
from gpurun.bench.trees.git import open_repository
from gpurun.bench.trees.worktrees import WORKTREES, checked_out
from gpurun.isolation.folder_removal import mark
from gpurun.rundir import find_home
from tests.conftest import REPOSITORY
from tests.integration.isolation_launcher import tree
from tests.integration.launched import wait_for
from tests.integration.worktree_sides import assert_nothing_left, both, places, two_commits
from tests.repositories import commit, git, new_repository

HOLD = """
import sys, time
from pathlib import Path
from gpurun.bench.trees.git import open_repository
from gpurun.bench.trees.worktrees import checked_out

repository = open_repository(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    with checked_out(repository, sys.argv[2], Path(sys.argv[3])) as (tree, _):
        print(tree, flush=True)
        time.sleep(float(sys.argv[4]))
    if sys.argv[5] == "once":
        break
"""
"""A process that holds a worktree for a while, once or again and again."""


pytestmark = pytest.mark.usefixtures("settings_of_nobody")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return two_commits(tmp_path)


def start(folder: Path, seconds: float, times: str) -> subprocess.Popen[str]:
    """A process that is ready to hold worktrees."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder, "HEAD~1", find_home(folder), str(seconds), times],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def hold(folder: Path, seconds: float) -> tuple[subprocess.Popen[str], Path]:
    """A process that holds a worktree, and where that is."""
    process = start(folder, seconds, "once")
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def compared_without_leftovers(folder: Path) -> bool:
    """Whether nothing is left of worktrees after a comparison."""
    with both(folder):
        pass
    return not places(folder)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_the_worktree_goes_whatever_ends_the_comparison(
    folder: Path, error: type[BaseException]
) -> None:
    def compare() -> None:
        with both(folder) as sides:
            locked = sides.baseline.tree.root / "made" / "read-only"
            locked.mkdir(parents=True)
            (locked / "file").write_text("1")
            locked.chmod(0o500)
            raise error

    with pytest.raises(error):
        compare()
    assert_nothing_left(folder)


def test_what_a_killed_process_left_goes_with_the_next_comparison(folder: Path) -> None:
    process, tree = hold(folder, 600)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tree / "scripts" / "train.py").read_text() == "old"
    with both(folder) as sides:
        assert sides.baseline.tree.root != tree
        assert not tree.exists()
        assert str(tree) not in git(folder, "worktree", "list")
    assert_nothing_left(folder)


@pytest.mark.parametrize("left", ["a file of git's missing", "no tree"])
def test_a_worktree_that_was_half_made_or_half_removed_goes_too(folder: Path, left: str) -> None:
    process, tree = hold(folder, 600)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (tree / ".git").unlink()
    if left == "no tree":
        shutil.rmtree(tree)
    with both(folder):
        pass
    assert_nothing_left(folder)


def test_a_kill_in_the_middle_of_making_or_removing_leaves_nothing_either(folder: Path) -> None:
    for milliseconds in (1, 8, 16, 24):
        process = start(folder, 0, "again and again")
        time.sleep(milliseconds / 1000)
        process.kill()
        process.wait()
        # a git that it had just started may outlive it, and hold the place
        assert wait_for(lambda: compared_without_leftovers(folder))
        assert_nothing_left(folder)


def test_a_kill_while_the_records_get_their_ignore_file_leaves_no_draft(folder: Path) -> None:
    worktrees = find_home(folder) / WORKTREES
    worktrees.mkdir()
    (worktrees / ".gitignore").touch()  # what a kill between making and writing it leaves
    with both(folder):
        assert [path.name for path in worktrees.glob(".*")] == [".gitignore"]
        assert not git(folder, "status", "--porcelain", "--untracked-files=all")
    assert (worktrees / ".gitignore").read_text() == "*\n"


def test_an_empty_folder_of_the_users_among_the_worktrees_stays(folder: Path) -> None:
    users = find_home(folder) / WORKTREES / "wood"
    users.mkdir(parents=True)
    assert not compared_without_leftovers(folder)
    assert places(folder) == [users]


def test_the_worktree_of_a_living_process_is_left_alone(folder: Path) -> None:
    process, tree = hold(folder, 600)
    try:
        with both(folder):
            assert (tree / "scripts" / "train.py").read_text() == "old"
        assert (tree / "scripts" / "train.py").read_text() == "old"
        assert str(tree) in git(folder, "worktree", "list")
    finally:
        process.send_signal(signal.SIGINT)  # Ctrl-C: it cleans up by itself
        process.wait()
    assert_nothing_left(folder)


def test_comparisons_at_once_do_not_meet(folder: Path) -> None:
    processes = [hold(folder, 0.2) for _ in range(3)]
    trees = {tree for _, tree in processes}
    assert len(trees) == 3
    assert [process.wait() for process, _ in processes] == [0, 0, 0]
    assert_nothing_left(folder)


def test_many_threads_make_and_remove_worktrees_at_once(folder: Path) -> None:
    repository, home = open_repository(folder), find_home(folder)
    first = git(folder, "rev-parse", "HEAD~1")
    seen: list[str] = []

    def work() -> None:
        for _ in range(3):
            with checked_out(repository, first, home) as (tree, _):
                seen.append((tree / "scripts" / "train.py").read_text())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["old"] * 9
    assert_nothing_left(folder)


def test_another_repositorys_leftovers_in_shared_records_go_too(
    tmp_path: Path, folder: Path
) -> None:
    other = new_repository(tmp_path / "other")
    first = commit(other, {"a.py": "1"})
    process, _ = hold(folder, 600)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with checked_out(open_repository(other), first, folder / ".gpurun"):
        assert len(places(folder)) == 1
    with both(folder):
        assert git(folder, "worktree", "list").count("\n") == 1
    assert_nothing_left(folder)


def lay_out(what: str, place: Path, mine: Path) -> None:
    """Something at `place` that leads to `mine`, or is a copy of it."""
    if what == "a link":
        place.symlink_to(mine)
    elif what == "a folder with a link":
        place.mkdir()
        (place / "in").symlink_to(mine)
    elif what == "a file":
        place.write_text("mine")
    else:
        if what == "a marked copy":
            mark(mine)
        shutil.copytree(mine, place, symlinks=True)


@pytest.mark.parametrize(
    "what", ["a link", "a folder with a link", "a file", "a copy", "a marked copy"]
)
def test_what_only_looks_like_a_left_worktree_stays(
    folder: Path, tmp_path: Path, what: str
) -> None:
    mine = tmp_path / "mine"
    (mine / "deep").mkdir(parents=True)
    (mine / "deep" / "file").write_text("mine")
    (mine / "deep").chmod(0o550)
    place = find_home(folder) / WORKTREES / "20260101-000000-abcdef"
    place.parent.mkdir()
    lay_out(what, place, mine)
    before = tree(mine), tree(place)
    with both(folder):
        pass
    assert (tree(mine), tree(place)) == before


def test_a_worktree_that_git_will_not_forget_yet_goes_with_a_later_comparison(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something of a killed setup command still writes into it."""
    git_itself = worktrees.run_git

    def refuses(*words: object, **named: object) -> object:
        if "remove" in words:
            words = (words[0], "status", "--no-such-flag")
        return git_itself(*words, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(worktrees, "run_git", refuses)
        with both(folder):
            pass
        assert git(folder, "worktree", "list").count("\n") == 1
    with both(folder):
        pass
    assert_nothing_left(folder)
