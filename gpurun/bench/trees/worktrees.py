"""A commit in a working tree of its own, for the time of a comparison.

It is a detached git worktree below the folder of records: `worktrees/<id>/<name of the repository's
folder>`. So tags and history are there for tools that read them (versions from tags). Git ignores
that folder, and tools that walk the user's tree pass over it. Inside, every path relative to the
top is the same as in the user's tree. So is the top's own name, which scripts may import.

The user's repository stays as it was. No hook runs, and the list of worktrees is as before at the
end. `git worktree prune` is never called: it would also forget the user's own worktrees on a disk
that is away. Filters do run, git LFS's too, because without them the files would not be those of
the commit. Missing objects are then fetched, or git says that it cannot.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpurun.bench.trees import submodules
from gpurun.bench.trees.folder_locks import abandoned, alone_with, claimed
from gpurun.bench.trees.git import NOT_INSTALLED, Repository, failure, run_git
from gpurun.errors import GpurunError, say
from gpurun.isolation.folder_removal import MARK, discard, is_marked, mark
from gpurun.rundir import own_folder

WORKTREES = "worktrees"
TRIES, BETWEEN_TRIES = 3, 0.2
"""Attempts to remove a worktree, and the seconds between them."""


@dataclass(frozen=True)
class Checkout:
    """A commit checked out in `tree`. `place` is the folder around it, which goes with it.

    `notes`: what of the commit is not there, and why.
    """

    commit: str
    tree: Path
    place: Path
    notes: tuple[str, ...] = ()


@contextmanager
def checked_out(repository: Repository, commit: str, home: Path) -> Iterator[Checkout]:
    """`commit` in a worktree below the folder of records `home`, removed at the end of the block.

    Worktrees that killed processes left there are removed first. Several processes may do this in
    one repository at once.
    """
    sides = own_folder(home.resolve(), WORKTREES)
    remove_abandoned(sides)
    place = sides / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
    with claimed(place, repository.common):
        place.mkdir()
        mark(place)
        try:
            tree = place / (repository.root.name or "tree")
            _add(repository, tree, commit)
            notes = submodules.check_out(repository, tree)
            yield Checkout(commit, tree, place, notes)
        finally:
            _remove(place, repository.common)


def remove_abandoned(sides: Path) -> None:
    """Remove the worktrees of processes that are gone, and of no other."""
    with abandoned(sides) as left:
        for place, common in left:
            if is_marked(place):
                _remove(place, common)
            else:  # the process was killed before it had marked it, or somebody else made it
                with suppress(OSError):
                    place.rmdir()


def _add(repository: Repository, tree: Path, commit: str) -> None:
    words = ("worktree", "add", "--quiet", "--detach", "--lock", "--no-checkout")
    with alone_with(repository.common) as locks:
        done = run_git(repository.root, *words, os.fspath(tree), commit, locks=locks)
    if done.returncode == 0:
        done = run_git(tree, "reset", "--hard", "--quiet")
    if done.returncode == 0:
        return
    of_lfs = "smudge filter lfs" in done.stderr or "git-lfs" in done.stderr
    if of_lfs and not NOT_INSTALLED.search(done.stderr):
        raise GpurunError(
            f"git LFS could not bring the files of {commit[:9]}",
            f"git lfs fetch origin {commit[:9]}, then compare again",
        )
    raise failure(words[:2], done.stderr)


def _remove(place: Path, common: Path) -> None:
    """The files first: git then drops what it knows of the trees, whatever state those were in.

    The folder itself goes last: while it is there, an interrupted removal is taken up again.
    """
    if not place.exists():
        return
    listed = False
    for _ in range(TRIES):  # what a command of the user's left running may write there still
        for content in place.iterdir():
            if content.name != MARK:
                discard(content)
        with alone_with(common) as locks:
            for tree in (tree for tree in _known(common) if tree.parent == place):
                words = ("worktree", "remove", "--force", "--force", os.fspath(tree))
                run_git(common, *words, locks=locks)
            listed = any(tree.parent == place for tree in _known(common))
        if not listed:
            break
        time.sleep(BETWEEN_TRIES)
    if not listed:
        discard(place)
    if place.exists():
        say(f"{place} could not be removed; the next comparison tries again")


def _known(common: Path) -> list[Path]:
    """The worktrees that the repository knows; none where it is gone itself.

    `git worktree list` names one a line, and a name may hold a line break.
    """
    named = [
        (one.parent, os.fsdecode(one.read_bytes())) for one in common.glob("worktrees/*/gitdir")
    ]
    return [Path(os.path.normpath(own / text.rstrip("\n"))).parent for own, text in named]
