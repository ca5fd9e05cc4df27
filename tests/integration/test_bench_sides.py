"""The baseline's side: a worktree that has what it needs, and that leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.trees import worktrees
from gpurun.bench.trees.git import open_repository
from gpurun.bench.trees.prepared_sides import Sides, compared_sides
from gpurun.bench.trees.setup_command import run_setup
from gpurun.bench.trees.worktrees import WORKTREES, checked_out
from gpurun.errors import ExitCode, GpurunError
from gpurun.isolation.folder_removal import mark
from gpurun.rundir import find_home
from tests.conftest import REPOSITORY
from tests.integration.isolation_launcher import tree
from tests.integration.launched import alive, wait_for
from tests.integration.side_launches import benchmark
from tests.repositories import commit, git, new_repository, state

HOLD = """
import sys, time
from pathlib import Path
from gpurun.bench.trees.git import open_repository
from gpurun.bench.trees.worktrees import checked_out

repository = open_repository(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    with checked_out(repository, sys.argv[2], Path(sys.argv[3])) as checkout:
        print(checkout.tree, flush=True)
        time.sleep(float(sys.argv[4]))
    if sys.argv[5] == "once":
        break
"""
"""A process that holds a worktree for a while, once or again and again."""


@pytest.fixture(autouse=True)
def _settings_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository of two commits, whose script says which it is."""
    folder = new_repository(tmp_path / "project")
    commit(folder, {"scripts/train.py": "old", "data/small.txt": "old"})
    commit(folder, {"scripts/train.py": "new"})
    return folder


@contextmanager
def both(folder: Path, made: Benchmark | None = None) -> Iterator[Sides]:
    repository = open_repository(folder)
    home = find_home(folder)
    first = git(folder, "rev-parse", "HEAD~1")
    made = made or benchmark(folder)
    with compared_sides(repository, first, home, made, home / "logs") as sides:
        yield sides


def places(folder: Path) -> list[Path]:
    """What is left of worktrees in the records: folders and locks."""
    return sorted(p for p in (folder / ".gpurun" / WORKTREES).iterdir() if p.name != ".gitignore")


def assert_nothing_left(folder: Path) -> None:
    assert places(folder) == []
    assert git(folder, "worktree", "list").count("\n") == 0
    assert not (folder / ".git" / "worktrees").exists()


def compared_without_leftovers(folder: Path) -> bool:
    """Whether nothing is left of worktrees after a comparison."""
    with both(folder):
        pass
    return not places(folder)


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


def test_each_side_has_its_commit_at_the_same_relative_place(folder: Path) -> None:
    with both(folder, benchmark(folder / "scripts")) as sides:
        assert (sides.baseline.folder / "train.py").read_text() == "old"
        assert (sides.current.folder / "train.py").read_text() == "new"
        for side in (sides.baseline, sides.current):
            assert side.folder.relative_to(side.tree.root) == Path("scripts")
            assert side.tree.root.name == "project"
        assert git(sides.baseline.tree.root, "rev-parse", "HEAD") == sides.baseline.commit
        assert git(folder, "rev-parse", "HEAD") == sides.current.commit
    assert_nothing_left(folder)


def test_the_users_repository_stays_as_it_was(folder: Path) -> None:
    ran = folder.parent / "hook-ran"
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        path = folder / ".git" / "hooks" / hook
        path.write_text(f"#!/bin/sh\ntouch {ran}\n")
        path.chmod(0o755)
    (folder / "stashed.txt").write_text("1")
    git(folder, "add", "stashed.txt")
    git(folder, "stash")
    git(folder, "worktree", "add", "-q", "--detach", folder.parent / "users-own", "HEAD~1")
    (folder / "scripts" / "train.py").write_text("changed")
    (folder / "staged.py").write_text("1")
    git(folder, "add", "staged.py")
    os.utime(folder / "data" / "small.txt")  # git would write the index anew for less
    home = find_home(folder)
    ran.unlink()
    before = state(folder)
    with both(folder) as sides:
        assert open_repository(folder).changes().tracked == ("scripts/train.py", "staged.py")
        during = state(folder / ".git")
    (home / WORKTREES / ".gitignore").unlink()
    (home / WORKTREES).rmdir()
    assert state(folder) == before
    assert not ran.exists()
    added = {f".git/{name}" for name in during} - before.keys()
    assert sides.baseline.tree.root.name == "project"
    assert all(name.startswith(".git/worktrees/project") for name in added)
    assert {n: text for n, text in before.items() if n.startswith(".git/")} == {
        f".git/{n}": text for n, text in during.items() if f".git/{n}" not in added
    }


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
            with checked_out(repository, first, home) as checkout:
                seen.append((checkout.tree / "scripts" / "train.py").read_text())

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


def test_a_commit_that_is_compared_needs_no_clean_or_attached_head(folder: Path) -> None:
    git(folder, "checkout", "-q", "--detach")
    (folder / "scripts" / "train.py").write_text("dirty")
    with both(folder) as sides:
        assert (sides.baseline.folder / "scripts/train.py").read_text() == "old"
        assert (sides.current.folder / "scripts/train.py").read_text() == "dirty"


def test_two_commits_can_be_compared_away_from_the_users_tree(folder: Path) -> None:
    repository, home = open_repository(folder), find_home(folder)
    old, new = git(folder, "rev-parse", "HEAD~1", "HEAD").split()
    (folder / "scripts" / "train.py").write_text("dirty")
    with compared_sides(
        repository, old, home, benchmark(folder), home / "logs", current=new
    ) as sides:
        assert (sides.baseline.folder / "scripts/train.py").read_text() == "old"
        assert (sides.current.folder / "scripts/train.py").read_text() == "new"
        assert str(folder) in sides.watched(sides.current).others
    assert_nothing_left(folder)


def test_a_file_that_git_lfs_cannot_bring_is_told_with_the_cure(folder: Path) -> None:
    git(folder, "config", "filter.lfs.smudge", "false")
    git(folder, "config", "filter.lfs.clean", "cat")
    git(folder, "config", "filter.lfs.required", "true")
    commit(folder, {".gitattributes": "*.bin filter=lfs\n", "weights.bin": "pointer"})
    commit(folder, {"scripts/train.py": "newer"})
    with pytest.raises(GpurunError, match="git LFS could not bring") as caught, both(folder):
        pass
    assert "git lfs fetch origin" in caught.value.todo
    assert_nothing_left(folder)


def test_a_filter_that_is_not_installed_is_named(folder: Path) -> None:
    commit(folder, {".gitattributes": "*.bin filter=lfs\n", "weights.bin": "pointer"})
    commit(folder, {"scripts/train.py": "newer"})
    for key, value in (("smudge", "git-lfx smudge"), ("clean", "git-lfx clean")):
        git(folder, "config", f"filter.lfs.{key}", value)
    git(folder, "config", "filter.lfs.required", "true")
    (folder / "weights.bin").touch()
    for broken in (lambda: both(folder).__enter__(), lambda: open_repository(folder).changes()):
        with pytest.raises(GpurunError, match="git needs git-lfx") as caught:
            broken()
        assert caught.value.todo.startswith("install git-lfx")
    assert_nothing_left(folder)


@pytest.mark.parametrize("name", ["re\npo", os.fsdecode(b"re\xffpo")])
def test_a_repository_may_have_any_name(name: str, tmp_path: Path) -> None:
    folder = new_repository(tmp_path / name)
    commit(folder, {"scripts/train.py": "old"})
    commit(folder, {"scripts/train.py": "new"})
    with both(folder) as sides:
        assert (sides.baseline.folder / "scripts/train.py").read_text() == "old"
    assert places(folder) == []
    assert not (folder / ".git" / "worktrees").exists()


def test_submodules_that_git_would_fill_by_itself_are_filled(folder: Path) -> None:
    library = new_repository(folder.parent / "library")
    commit(library, {"lib.py": "library"})
    git(folder, "submodule", "--quiet", "add", library, "lib")
    git(folder, "commit", "-q", "-m", "library")
    commit(folder, {"scripts/train.py": "newer"})
    git(folder, "config", "submodule.recurse", "true")
    with both(folder) as sides:
        assert (sides.baseline.folder / "lib/lib.py").read_text() == "library"
    assert_nothing_left(folder)


def test_a_worktree_of_the_users_is_compared_like_any_checkout(folder: Path) -> None:
    linked = folder.parent / "linked"
    git(folder, "worktree", "add", "-q", "-b", "mine", linked)
    with both(linked) as sides:
        assert (sides.baseline.folder / "scripts/train.py").read_text() == "old"
    assert places(linked) == []
    assert git(folder, "worktree", "list").count("\n") == 1


def test_needed_files_come_along_and_committed_ones_stay_as_committed(folder: Path) -> None:
    large = folder.parent / "large"
    large.mkdir()
    (folder / "data" / "small.txt").write_text("of the working tree")
    (folder / "data" / "made.bin").write_text("untracked")
    (folder / "data" / "deep" / "er").mkdir(parents=True)
    (folder / "data" / "deep" / "er" / "x").write_text("deep")
    (folder / "data" / "all").symlink_to("../../large")
    (folder / "data" / "near").symlink_to("made.bin")
    with both(folder, benchmark(folder, needed=("data/*",))) as sides:
        data = sides.baseline.folder / "data"
        assert (data / "made.bin").read_text() == "untracked"
        assert (data / "small.txt").read_text() == "old"
        assert (data / "deep" / "er" / "x").read_text() == "deep"
        assert (data / "all").resolve() == large
        assert (data / "near").resolve() == data / "made.bin"


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A repository whose older commit has a link out of it, where the newer one has a folder."""
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = new_repository(tmp_path / "project")
    (folder / "data").symlink_to(outside)
    (folder / "inner").mkdir()
    (folder / "near").symlink_to("inner")
    git(folder, "add", "data", "near")
    commit(folder, {"inner/small.txt": "old"})
    git(folder, "rm", "-q", "data", "near")
    commit(folder, {"data/train.py": "new", "near/train.py": "new"})
    return folder


@pytest.mark.parametrize("below", ["", "deep/er/"])
def test_no_needed_file_is_written_behind_a_link_out_of_the_tree(
    linked: Path, tmp_path: Path, below: str
) -> None:
    (linked / "data" / below).mkdir(parents=True, exist_ok=True)
    (linked / "data" / below / "x").write_text("needed")
    asked = benchmark(linked, needed=(f"data/{below}x",))
    with (
        pytest.raises(GpurunError, match=f"data/{below}x .* behind a link") as told,
        both(linked, asked),
    ):
        pass
    assert "take it out of needed" in told.value.todo
    assert not list((tmp_path / "outside").iterdir())
    assert_nothing_left(linked)


def test_a_needed_file_may_lie_behind_a_link_within_the_tree(linked: Path) -> None:
    (linked / "near" / "x").write_text("needed")
    with both(linked, benchmark(linked, needed=("near/x",))) as sides:
        assert (sides.baseline.tree.root / "inner" / "x").read_text() == "needed"


def test_a_needed_link_and_what_lies_behind_it_leave_its_target_alone(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "x").write_text("the user's")
    (folder / "all").symlink_to(tmp_path / "set")
    with both(folder, benchmark(folder, needed=("all", "all/x"))) as sides:
        assert (sides.baseline.folder / "all").readlink() == tmp_path / "set"
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["x"]


def test_launches_and_setup_do_not_start_behind_a_link_out_of_the_tree(
    linked: Path, tmp_path: Path
) -> None:
    made = benchmark(linked / "data", setup="touch here")
    with pytest.raises(GpurunError, match="data of the other commit is a link"), both(linked, made):
        pass
    assert not list((tmp_path / "outside").iterdir())
    assert_nothing_left(linked)


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


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("data/*.npz", "nothing in"),
        ("/etc/hosts", "is no path inside"),
        ("../x", "is no path"),
        ("**x", "needed: .*Invalid pattern"),
    ],
)
def test_needed_files_that_cannot_be_copied_are_named(
    folder: Path, pattern: str, says: str
) -> None:
    with (
        pytest.raises(GpurunError, match=says),
        both(folder, benchmark(folder, needed=(pattern,))),
    ):
        pass
    assert_nothing_left(folder)


def test_a_submodule_is_filled_without_network_and_its_own_too(
    tmp_path: Path, folder: Path
) -> None:
    inner, outer = new_repository(tmp_path / "inner"), new_repository(tmp_path / "outer")
    commit(inner, {"deep.py": "deep"})
    git(outer, "submodule", "add", "-q", inner, "inner")
    commit(outer, {"lib.py": "old"})
    git(folder, "submodule", "add", "-q", "--name", "a library", outer, "libs/outer")
    git(folder, "submodule", "update", "-q", "--init", "--recursive")
    commit(folder, {})
    lib = folder / "libs" / "outer"
    commit(lib, {"lib.py": "new"})
    git(folder, "add", "libs/outer")
    commit(folder, {})
    for gone in (inner, outer):
        gone.rename(gone.with_name(f"{gone.name}-away"))
    before = state(folder / ".git" / "modules"), (folder / ".git" / "config").read_bytes()
    with both(folder) as sides:
        libs = sides.baseline.tree.root / "libs" / "outer"
        assert (libs / "lib.py").read_text() == "old"
        assert (libs / "inner" / "deep.py").read_text() == "deep"
        assert git(sides.baseline.tree.root, "status", "--porcelain") == ""
    assert (state(folder / ".git" / "modules"), (folder / ".git" / "config").read_bytes()) == before
    assert_nothing_left(folder)


def test_a_submodule_that_was_never_fetched_is_left_out_and_told(
    tmp_path: Path, folder: Path
) -> None:
    library = new_repository(tmp_path / "library")
    commit(library, {"lib.py": "1"})
    git(folder, "submodule", "add", "-q", library, "library")
    commit(folder, {})
    commit(folder, {})
    git(tmp_path, "clone", "-q", folder, "clone")
    with both(tmp_path / "clone") as sides:
        assert list((sides.baseline.tree.root / "library").iterdir()) == []
        assert "library is empty" in sides.notes[0]


@pytest.mark.parametrize("name", ["../../evil", "{tmp_path}/evil"])
def test_a_submodules_name_leads_to_no_folder_outside_of_the_repository(
    tmp_path: Path, folder: Path, name: str
) -> None:
    """git itself refuses such names: whoever wrote the commit could choose the settings there."""
    evil = commit(new_repository(tmp_path / "evil-work"), {"inside": "1"})
    git(tmp_path, "clone", "-q", "--bare", "evil-work", "project/evil")
    git(tmp_path, "clone", "-q", "--bare", "evil-work", "evil")
    (folder / ".git" / "modules").mkdir()
    told = f'[submodule "{name.format(tmp_path=tmp_path)}"]\n\tpath = sub\n\turl = x\n'
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{evil},sub")
    commit(folder, {".gitmodules": told})
    commit(folder, {"scripts/train.py": "newer"})
    with both(folder) as sides:
        assert sides.notes == ("submodule sub is empty: it was never fetched here",)


def test_a_submodules_commit_that_is_not_here_is_named(tmp_path: Path, folder: Path) -> None:
    library = new_repository(tmp_path / "library")
    commit(library, {"lib.py": "1"})
    git(folder, "submodule", "add", "-q", library, "library")
    git(folder, "update-index", "--cacheinfo", f"160000,{'1' * 40},library")
    git(folder, "commit", "-q", "-m", "a commit that nobody has")
    commit(folder, {})
    with pytest.raises(GpurunError, match="111111111 of submodule library") as caught, both(folder):
        pass
    assert "fetch origin" in caught.value.todo
    assert_nothing_left(folder)


def test_setup_runs_on_both_sides_in_environments_of_their_own(folder: Path) -> None:
    setup = (
        "echo $MINE; cat train.py > built; "
        'python -c \'import sys; open("prefix", "w").write(sys.prefix)\''
    )
    made = benchmark(folder / "scripts", setup=setup, env={"MINE": "yes"})
    with both(folder, made) as sides:
        assert (sides.baseline.folder / "built").read_text() == "old"
        assert (sides.current.folder / "built").read_text() == "new"
        prefixes = [
            Path((s.folder / "prefix").read_text()) for s in (sides.baseline, sides.current)
        ]
        assert prefixes == [sides.baseline.environment, sides.current.environment]
        assert len({*prefixes, Path(sys.prefix)}) == 3
    logs = folder / ".gpurun" / "logs"
    assert (logs / "setup-baseline.log").read_text() == "yes\n"
    assert_nothing_left(folder)


def test_setup_and_needed_files_are_of_the_configurations_folder(folder: Path) -> None:
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "small.bin").write_text("small")
    made = benchmark(folder / "scripts", setup="pwd > built", needed=("data/*",), base=folder)
    with both(folder, made) as sides:
        for side in (sides.baseline, sides.current):
            assert side.folder == side.tree.root / "scripts"
            assert (side.tree.root / "built").read_text() == f"{side.tree.root}\n"
            assert (side.tree.root / "data" / "small.bin").read_text() == "small"
    (folder / "built").unlink()
    assert_nothing_left(folder)


def test_a_configuration_outside_of_the_repository_sets_up_where_launches_start(
    tmp_path: Path, folder: Path
) -> None:
    made = benchmark(folder / "scripts", setup="pwd > built", base=tmp_path)
    with both(folder, made) as sides:
        for side in (sides.baseline, sides.current):
            assert (side.folder / "built").read_text() == f"{side.folder}\n"


@pytest.mark.parametrize(("fails_on", "side"), [("old", "baseline"), ("new", "current")])
def test_a_setup_that_fails_on_one_side_names_it_with_its_last_lines(
    folder: Path, fails_on: str, side: str
) -> None:
    setup = (
        f"echo building; ! grep -q {fails_on} scripts/train.py || {{ echo no compiler; exit 7; }}"
    )
    with pytest.raises(GpurunError) as caught, both(folder, benchmark(folder, setup=setup)):
        pass
    error = caught.value
    assert error.code == ExitCode.BENCHMARK_FAILED
    assert f"setup failed on the {side} side" in error.what
    assert "ended with 7: building | no compiler" in error.what
    assert "\n" not in error.what
    assert str(folder / ".gpurun" / "logs" / f"setup-{side}.log") in error.todo
    assert_nothing_left(folder)


def test_an_interrupted_setup_ends_with_all_that_it_started(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = folder.parent / "pid"
    made = benchmark(folder, setup=f"sleep 6000 & echo $! > {pids}; wait")

    def interrupt() -> None:
        wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt), both(folder, made):
        pass
    assert wait_for(lambda: not alive(int(pids.read_text())))
    assert_nothing_left(folder)


def test_a_setup_that_is_interrupted_before_its_process_is_known_ends_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C within Popen: the command runs, and nobody has its process id."""
    pids = tmp_path / "pid"
    real = subprocess.Popen

    def interrupted(words: list[str], **more: Any) -> Any:
        child = real(words, **more)
        if words[-1].startswith("sleep"):
            assert wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
            raise KeyboardInterrupt
        return child

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_setup(
            f"sleep 6000 & echo $! > {pids}; wait", "baseline", tmp_path, os.environ, tmp_path
        )
    assert wait_for(lambda: not alive(int(pids.read_text())))


def test_a_setup_ends_with_a_killed_comparison_with_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    words = (
        "import os, pathlib, sys; from gpurun.bench.trees.setup_command import run_setup; "
        "here = pathlib.Path(sys.argv[1]); "
        "run_setup('sleep 6000 & echo $! > pid; wait', 'baseline', here, os.environ, here)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", words, tmp_path], env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    )
    assert wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
    process.kill()
    process.wait()
    assert wait_for(lambda: not alive(int(pids.read_text())))


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


def test_a_pythonpath_into_the_tree_leads_to_each_sides_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = folder.parent / "elsewhere"
    monkeypatch.setenv(
        "PYTHONPATH", f"{folder / 'scripts'}:{elsewhere}:{folder / 'new-folder'}:rel"
    )
    with both(folder) as sides:
        words = sides.baseline.variables["PYTHONPATH"].split(":")
        assert words[0] == str(sides.baseline.tree.root / "scripts")
        assert words[1:] == [str(elsewhere), str(folder / "new-folder"), "rel"]
        assert sides.current.variables["PYTHONPATH"].split(":")[0] == str(folder / "scripts")


def test_a_folder_outside_of_the_repository_is_refused(tmp_path: Path, folder: Path) -> None:
    refused = pytest.raises(GpurunError, match="is not in the repository")
    with refused, both(folder, benchmark(tmp_path)):
        pass
