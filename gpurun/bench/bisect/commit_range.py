"""The commits of a search: GOOD..BAD along first parents, each with its subject and author.

A search by "slower from here on" needs commits that lie on one line. Along first parents they do:
each holds all that came before it. A merged branch is one change there, named by its merge.
"""

from __future__ import annotations

from gpurun.bench.trees.git import FULL_HISTORY, Repository, Revision, incomparable, short
from gpurun.errors import GpurunError
from gpurun.records.bench.bisection import BisectedCommit

FIELDS = "%H%x00%P%x00%an%x00%aI%x00%s"


def commit_range(repository: Repository, good: str, bad: str) -> tuple[BisectedCommit, ...]:
    """The line from `good` to `bad`, names of commits; `GpurunError` (exit code 4) without one.

    GOOD comes first, and BAD last.
    """
    older, newer = repository.resolve(good), repository.resolve(bad)
    if older.commit == newer.commit:
        raise incomparable(
            f"{good} and {bad} are the same commit {short(older.commit)}",
            "name an older one that is known to be faster first, as in v1.0..main",
        )
    commits = _after(repository, older, newer)
    start = repository.first_parent(commits[0])
    if start != older.commit:
        cure = f"start at their common ancestor: {short(start)}..{bad}" if start else FULL_HISTORY
        raise incomparable(f"{good} is not on the line of first parents of {bad}", cure)
    words = ("log", "--no-show-signature", "--encoding=UTF-8", f"--format={FIELDS}")
    after = ("--first-parent", "--topo-order", "--reverse", f"{older.commit}..{newer.commit}")
    listed = repository.call(*words, "--no-walk", older.commit) + repository.call(*words, *after)
    return tuple(map(_read, listed.splitlines()))


def _after(repository: Repository, good: Revision, bad: Revision) -> tuple[str, ...]:
    try:
        return repository.commits_between(good, bad, first_parent=True)
    except GpurunError as error:
        todo = error.todo
        try:
            repository.commits_between(bad, good)
            todo = f"swap them: {bad.name}..{good.name}"
        except GpurunError:
            pass  # neither comes from the other: the first cure stands
        raise incomparable(error.what, todo) from None


def _read(line: str) -> BisectedCommit:
    commit, parents, author, authored, subject = line.split("\0", 4)
    return BisectedCommit(commit, subject, author, authored, len(parents.split()) > 1)
