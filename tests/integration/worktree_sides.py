"""Sides of a comparison in worktrees, and what is left of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.trees.git import open_repository
from gpurun.bench.trees.prepared_sides import BASELINE, CURRENT, Sides, prepared_sides
from gpurun.bench.trees.worktrees import WORKTREES
from gpurun.rundir import find_home
from tests.integration.side_launches import benchmark
from tests.repositories import commit, git, new_repository


def two_commits(tmp_path: Path) -> Path:
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
    commits = {BASELINE: first, CURRENT: None}
    with prepared_sides(repository, commits, home, made, home / "logs") as sides:
        yield sides


def places(folder: Path) -> list[Path]:
    """What is left of worktrees in the records: folders and locks."""
    return sorted(p for p in (folder / ".gpurun" / WORKTREES).iterdir() if p.name != ".gitignore")


def assert_nothing_left(folder: Path) -> None:
    assert places(folder) == []
    assert git(folder, "worktree", "list").count("\n") == 0
    assert not (folder / ".git" / "worktrees").exists()
