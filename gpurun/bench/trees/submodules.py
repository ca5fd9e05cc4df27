"""The submodules of a worktree, from the repositories that are here already: no network.

`git submodule update` would clone from the submodule's URL, and write to the configuration that
all worktrees share. Here each becomes a small repository that borrows the objects of the one that
the user has, and is removed with the tree.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpurun.bench.trees.git import Repository, call_git, run_git, short
from gpurun.errors import ExitCode, GpurunError

SUBMODULE = "160000"


def check_out(repository: Repository, tree: Path) -> tuple[str, ...]:
    """Fill the submodules of the worktree `tree` of `repository`, and theirs.

    A submodule that is empty in the user's own tree is left empty; the notes that are returned say
    so.
    """
    return tuple(_check_out(tree, repository.root, ""))


def _check_out(tree: Path, users: Path, above: str) -> list[str]:
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
        _borrow(source, tree / path, commit)
        notes += _check_out(tree / path, users / path, f"{shown}/")
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


def _borrow(source: Path, target: Path, commit: str) -> None:
    """A repository in `target` with `commit` checked out and the objects of `source`."""
    call_git(target.parent, "init", "--quiet", "--template=", os.fspath(target))
    own = target / ".git"
    (own / "objects" / "info").mkdir(exist_ok=True)
    (own / "objects" / "info" / "alternates").write_bytes(os.fsencode(source / "objects") + b"\n")
    if (source / "shallow").exists():
        (own / "shallow").write_bytes((source / "shallow").read_bytes())
    call_git(target, "checkout", "--quiet", "--detach", commit)
