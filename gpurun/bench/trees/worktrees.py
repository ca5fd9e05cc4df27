"""A commit in a working tree of its own, for the time of a comparison.

It is a detached git worktree below the folder of records:
`worktrees/gpurun-<id>/<name of the repository's folder>`. So tags and history are there for tools
that read them. Every path relative to the top is the same as in the user's tree. So is the top's
own name, which scripts may import.

The user's repository stays as it was. No hook runs, and the list of worktrees is as before at the
end. `git worktree prune` is never called: it would also forget the user's own worktrees on a disk
that is away. Filters do run, git LFS's too, because without them the files would not be those of
the commit. Missing objects are then fetched, or git says that it cannot.

`git submodule update` would clone from the submodule's URL, and write to the configuration that
all worktrees share. Here each submodule becomes a small repository that borrows the objects of the
one that the user has, without network, and is removed with the tree.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpurun.bench.trees.git import Repository, call_git, failure, run_git, short
from gpurun.errors import ExitCode, GpurunError
from gpurun.isolation.folder_removal import discard, discard_abandoned, hold, mark
from gpurun.rundir import own_folder

WORKTREES, SUBMODULE = "worktrees", "160000"
"""A folder; the mode by which git lists a submodule."""
PREFIX = "gpurun-"
"""Of the names of our folders there, which may be a folder of the user's."""


@contextmanager
def checked_out(
    repository: Repository, commit: str, home: Path
) -> Iterator[tuple[Path, list[str]]]:
    """`commit` in a worktree below the folder of records `home`, removed at the end of the block.
    The notes beside it say what of the commit is not there, and why.

    Worktrees that killed processes left there are removed first. Several processes may do this in
    one repository at once.
    """
    places = own_folder(home.resolve(), WORKTREES)
    remove_abandoned(places)
    place = places / f"{PREFIX}{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
    tree = place / (repository.root.name or "tree")
    held: list[int] = []
    try:
        with _alone_with(places):
            place.mkdir()
            held.append(hold(place))
            mark(place)
        with _alone_with(repository.common) as lock:
            _forget(repository.common, places, lock)
            _add(repository, tree, commit, (*held, lock))
        yield tree, _fill_submodules(tree, repository.root)
    finally:
        discard(place)
        for handle in held:
            os.close(handle)
        with _alone_with(repository.common) as lock:
            _forget(repository.common, places, lock)


def remove_abandoned(places: Path) -> None:
    """Remove the worktrees of processes that are gone, and of no other."""
    with _alone_with(places):
        for place in places.iterdir():
            discard_abandoned(place, [place])
            if place.name.startswith(PREFIX):
                with suppress(OSError):  # the process was killed before it had marked it
                    place.rmdir()


def _add(repository: Repository, tree: Path, commit: str, locks: tuple[int, ...]) -> None:
    words = ("worktree", "add", "--quiet", "--detach", "--lock", "--no-checkout")
    done = run_git(repository.root, *words, os.fspath(tree), commit, locks=locks)
    if done.returncode == 0:
        done = run_git(tree, "reset", "--hard", "--quiet")
    if done.returncode:
        raise failure(words, done.stderr)


def _forget(common: Path, places: Path, lock: int) -> None:
    """Have the repository forget its worktrees in `places` whose folder is gone.

    `git worktree list` names one a line, and a name may hold a line break: so git's files are read.
    """
    for link in common.glob("worktrees/*/gitdir"):
        text = os.fsdecode(link.read_bytes()).rstrip("\n")
        tree = Path(os.path.normpath(link.parent / text)).parent
        if tree.parent.parent == places and not os.path.lexists(tree.parent):
            words = ("worktree", "remove", "--force", "--force", os.fspath(tree))
            run_git(common, *words, locks=(lock,))


def _fill_submodules(tree: Path, users: Path, above: str = "") -> list[str]:
    """Fill the submodules of `tree`, and theirs, from the user's tree `users`; notes on those that
    are empty there, and stay so."""
    notes = []
    for path, commit in _submodules(tree):
        shown = f"{above}{path}"
        source = _source(users / path)
        if source is None:
            notes.append(f"submodule {shown} is empty, as it is in your tree")
            continue
        if run_git(source, "cat-file", "-e", f"{commit}^{{commit}}").returncode:
            raise GpurunError(
                f"commit {short(commit)} of submodule {shown}, which the baseline needs, is not "
                "here",
                f"git -C {users / path} fetch origin {commit}",
                ExitCode.NO_BASELINE,
            )
        words = ("clone", "--quiet", "--shared", "--no-checkout", "--template=")
        call_git(tree, *words, os.fspath(source), os.fspath(tree / path))
        call_git(tree / path, "checkout", "--quiet", "--detach", commit)
        notes += _fill_submodules(tree / path, users / path, f"{shown}/")
    return notes


def _submodules(tree: Path) -> list[tuple[str, str]]:
    """Path and commit of each submodule."""
    listed = run_git(tree, "ls-tree", "-r", "-z", "HEAD").stdout.split("\0")
    lines = [entry.partition("\t") for entry in listed if entry.startswith(SUBMODULE)]
    return [(path, head.split()[2]) for head, _, path in lines]


def _source(users: Path) -> Path | None:
    """The git folder of the user's copy, None if there is none."""
    done = run_git(users, "rev-parse", "--git-common-dir") if (users / ".git").exists() else None
    if done is None or done.returncode:
        return None
    return Path(os.path.realpath(users / done.stdout.strip()))


@contextmanager
def _alone_with(folder: Path) -> Iterator[int]:
    """Have no other comparison in such a block with `folder`: that of worktrees, or a git folder.

    git's own commands on worktrees trip over one that is being made or removed beside them. A child
    that is given the open file that this yields is in the block until its own end, too.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)
