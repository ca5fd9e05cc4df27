"""The records that belong to a branch, in the order of its commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from gpurun.bench.trees.git import Repository, open_repository
from gpurun.errors import GpurunError
from gpurun.records.bench.benchmark import BenchmarkPurpose, BenchmarkRecord, utc_moment

PURPOSES = (BenchmarkPurpose.BENCH, BenchmarkPurpose.COMPARE)
"""Purposes that a history shows, and that a baseline may have; others are planted slow-downs, other
settings, and commits in a search."""


@dataclass(frozen=True)
class Branch:
    """The commits of a branch along first parents, so that a merged branch is one change.

    `places` counts them, oldest first; `subjects` are the first lines of their messages. Without
    `whole` git does not know all of them (no repository, a shallow clone, a branch that is gone).
    Then records also belong to it by their branch's name, in the order of time.
    """

    name: str | None
    places: Mapping[str, int] = field(default_factory=dict)
    subjects: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False

    def holds(self, record: BenchmarkRecord) -> bool:
        """True if the record is one of this branch."""
        if record.commit in self.places:
            return True
        if self.whole:
            return False
        return record.branch == self.name if self.name is not None else not self.places

    def ordered(self, records: Iterable[BenchmarkRecord]) -> list[BenchmarkRecord]:
        """The records that belong to it, in the order of commits, and of time within one commit."""

        def order(record: BenchmarkRecord) -> tuple[int, datetime, str]:
            place = self.places.get(record.commit or "", 0) if self.whole else 0
            return place, utc_moment(record.time), record.id

        return sorted(filter(self.holds, records), key=order)


def branch_up_to(repository: Repository, commit: str, name: str | None) -> Branch:
    """The branch that ends with this commit."""
    line = repository.line(commit)
    places = {commit: place for place, (commit, _) in enumerate(line)}
    return Branch(name, places, dict(line), whole=not repository.is_shallow())


def branch_here(folder: Path, name: str | None = None) -> Branch:
    """The branch of this name, by default the one that is checked out in `folder`.

    Without git, all records are of the one branch there is.
    """
    try:
        repository = open_repository(folder)
        commit = repository.head() if name is None else repository.resolve(name).commit
    except GpurunError:  # no repository, no commit, or a branch that git does not know (any more)
        return Branch(name)
    return branch_up_to(repository, commit, name or repository.branch())
