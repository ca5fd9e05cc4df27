"""The commit to compare with, and the reason in one line."""

from __future__ import annotations

from dataclasses import dataclass

from gpurun.bench.trees.git import Changes, Repository, short
from gpurun.errors import ExitCode, GpurunError
from gpurun.formatting.number_text import count


@dataclass(frozen=True)
class Baseline:
    """The commit to compare the working tree with. `why` is one line."""

    commit: str
    why: str


def choose_baseline(repository: Repository, ref: str) -> Baseline:
    """The merge base of `ref` and HEAD: what others did on `ref` since then is not ours to judge.

    If that is HEAD itself (a run on main), a user can mean two things. Uncommitted changes are
    compared with HEAD. Without any, HEAD is compared with its first parent. `GpurunError` with exit
    code 4 where there is no such commit.
    """
    head, asked = repository.head(), repository.resolve(ref)
    changes = repository.changes()
    base = repository.merge_base(asked.commit, head)
    if base != head:
        why = f"the merge base of {asked.name} and HEAD{_with(changes)}"
        return _told(base, why, changes)
    if changes.dirty:
        number = count(len(changes.tracked), "uncommitted change")
        verb = "is" if len(changes.tracked) == 1 else "are"
        why = (
            f"HEAD, because {asked.name} holds it already: your {number} "
            f"{verb} compared (the last commit itself: --compare HEAD~1)"
        )
        return _told(base, why, changes)
    parent = repository.first_parent(head)
    if parent is None:
        raise GpurunError(
            f"HEAD is the first commit of {repository.root}: there is nothing before it",
            "compare from the second commit on",
            ExitCode.NO_BASELINE,
        )
    return _told(parent, f"HEAD's first parent, because {asked.name} holds HEAD already", changes)


def _told(commit: str, why: str, changes: Changes) -> Baseline:
    new = changes.untracked_python
    if new:
        number = count(len(new), "untracked python file")
        why += f"; {number} ({new[0]}{', …' if len(new) > 1 else ''}) not in it"
    return Baseline(commit, f"baseline {short(commit)}: {why}")


def _with(changes: Changes) -> str:
    if not changes.dirty:
        return ""
    return f", against HEAD with {count(len(changes.tracked), 'uncommitted change')}"
