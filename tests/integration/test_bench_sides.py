"""The baseline's side: a commit in a worktree, like the user's own tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.bench.trees.git import open_repository
from gpurun.bench.trees.prepared_sides import BASELINE, CURRENT, prepared_sides
from gpurun.bench.trees.worktrees import WORKTREES
from gpurun.errors import GpurunError
from gpurun.rundir import find_home
from tests.integration.side_launches import benchmark
from tests.integration.worktree_sides import assert_nothing_left, both, places, two_commits
from tests.repositories import commit, git, new_repository, state

pytestmark = pytest.mark.usefixtures("settings_of_nobody")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return two_commits(tmp_path)


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
        assert open_repository(folder).changed_files() == ("scripts/train.py", "staged.py")
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
    commits = {BASELINE: old, CURRENT: new}
    with prepared_sides(repository, commits, home, benchmark(folder), home / "logs") as sides:
        assert (sides.baseline.folder / "scripts/train.py").read_text() == "old"
        assert (sides.current.folder / "scripts/train.py").read_text() == "new"
        trees = sides.current.trees
        assert trees is not None
        assert str(folder) in trees.others
    assert_nothing_left(folder)


def test_a_file_that_git_lfs_cannot_bring_is_told_with_the_cure(folder: Path) -> None:
    git(folder, "config", "filter.lfs.smudge", "false")
    git(folder, "config", "filter.lfs.clean", "cat")
    git(folder, "config", "filter.lfs.required", "true")
    commit(folder, {".gitattributes": "*.bin filter=lfs\n", "weights.bin": "pointer"})
    commit(folder, {"scripts/train.py": "newer"})
    with pytest.raises(GpurunError, match="external filter 'false' failed") as caught, both(folder):
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
    for broken in (
        lambda: both(folder).__enter__(),
        lambda: open_repository(folder).changed_files(),
    ):
        with pytest.raises(GpurunError, match="external filter 'git-lfx ") as caught:
            broken()
        assert caught.value.todo.startswith("install that filter")
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


def test_a_worktree_of_the_users_is_compared_like_any_checkout(folder: Path) -> None:
    linked = folder.parent / "linked"
    git(folder, "worktree", "add", "-q", "-b", "mine", linked)
    with both(linked) as sides:
        assert (sides.baseline.folder / "scripts/train.py").read_text() == "old"
    assert places(linked) == []
    assert git(folder, "worktree", "list").count("\n") == 1


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
