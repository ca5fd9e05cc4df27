"""The commits of a search: GOOD..BAD along first parents, each with its subject and author.

A search by "slower from here on" needs commits that lie on one line. Along first parents they do:
each holds all that came before it. A merged branch is one change there, named by its merge.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpurun.bench.trees.git import FULL_HISTORY, Repository, Revision, incomparable, short
from gpurun.errors import GpurunError
from gpurun.formatting.number_text import count
from gpurun.records.bench.bisection import BisectedCommit

FIELDS = "%H%x00%P%x00%an%x00%aI%x00%s"


@dataclass(frozen=True)
class CommitRange:
    """GOOD, and the commits after it up to and with BAD, oldest first."""

    good: BisectedCommit
    commits: tuple[BisectedCommit, ...]

    @property
    def bad(self) -> BisectedCommit:
        """The last one."""
        return self.commits[-1]

    @property
    def ids(self) -> tuple[str, ...]:
        """The commits without what is known of them."""
        return tuple(one.commit for one in self.commits)

    def describe(self) -> str:
        """The range in one line for the user."""
        merges = sum(one.merge for one in self.commits)
        text = f"{count(len(self.commits), 'commit')} along first parents"
        if merges:
            text += f", {count(merges, 'merge')} among them"
        return f"{short(self.good.commit)}..{short(self.bad.commit)}: {text}"


def commit_range(repository: Repository, good: str, bad: str) -> CommitRange:
    """The line from `good` to `bad`, names of commits; `GpurunError` (exit code 4) without one."""
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
    listed = repository.call(*words, "--first-parent", "--topo-order", "--reverse",
                             f"{older.commit}..{newer.commit}")  # fmt: skip
    own = repository.call(*words, "--no-walk", older.commit)
    return CommitRange(_read(own.rstrip("\n")), tuple(map(_read, listed.splitlines())))


def branch_of(repository: Repository, merge: BisectedCommit) -> tuple[str, str] | None:
    """The range (GOOD, BAD) of the branch that a merge brought; None for other commits."""
    if not merge.merge:
        return None
    try:
        main, branch = (repository.resolve(f"{merge.commit}^{n}") for n in (1, 2))
        return repository.merge_base(main, branch), branch.commit
    except GpurunError:
        return None


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
