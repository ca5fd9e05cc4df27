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

    A submodule that the user never fetched is left empty, as it is in the user's own tree; the
    notes that are returned say so.
    """
    return tuple(_check_out(tree, repository.root, repository.common, ""))


def _check_out(tree: Path, users: Path, common: Path, above: str) -> list[str]:
    notes = []
    names = _names(tree)
    for path, commit in _submodules(tree):
        shown = f"{above}{path}"
        source = _source(users / path, common / "modules" / names.get(path, path))
        if source is None:
            notes.append(f"submodule {shown} is empty: it was never fetched here")
            continue
        if run_git(source, "cat-file", "-e", f"{commit}^{{commit}}").returncode:
            raise GpurunError(
                f"commit {short(commit)} of submodule {shown}, which the baseline needs, is not "
                "here",
                f"git -C {users / path} fetch origin {commit}",
                ExitCode.NO_BASELINE,
            )
        _borrow(source, tree / path, commit)
        notes += _check_out(tree / path, users / path, source, f"{shown}/")
    return notes


def _submodules(tree: Path) -> list[tuple[str, str]]:
    """Path and commit of each submodule."""
    listed = run_git(tree, "ls-tree", "-r", "-z", "HEAD").stdout.split("\0")
    lines = [entry.partition("\t") for entry in listed if entry.startswith(SUBMODULE)]
    return [(path, head.split()[2]) for head, _, path in lines]


def _names(tree: Path) -> dict[str, str]:
    """The name of each submodule by its path: its repository is filed under the name.

    A name that leads elsewhere is left out, as git does: git must not run in a folder of the tree.
    """
    words = ("config", "-z", "--file", ".gitmodules", "--get-regexp", r"^submodule\..*\.path$")
    entries = run_git(tree, *words).stdout.split("\0")
    pairs = [entry.partition("\n") for entry in entries if entry]
    names = {path: key[len("submodule.") : -len(".path")] for key, _, path in pairs}
    return {p: n for p, n in names.items() if not os.path.isabs(n) and ".." not in Path(n).parts}


def _source(users: Path, module: Path) -> Path | None:
    """The git folder of the user's copy, None if there is none."""
    if (users / ".git").exists():
        done = run_git(users, "rev-parse", "--git-common-dir")
        if done.returncode == 0:
            return Path(os.path.realpath(users / done.stdout.strip()))
    return module if (module / "objects").is_dir() else None


def _borrow(source: Path, target: Path, commit: str) -> None:
    """A repository in `target` with `commit` checked out and the objects of `source`."""
    call_git(target.parent, "init", "--quiet", "--template=", os.fspath(target))
    own = target / ".git"
    (own / "objects" / "info").mkdir(exist_ok=True)
    (own / "objects" / "info" / "alternates").write_bytes(os.fsencode(source / "objects") + b"\n")
    if (source / "shallow").exists():
        (own / "shallow").write_bytes((source / "shallow").read_bytes())
    call_git(target, "checkout", "--quiet", "--detach", commit)
