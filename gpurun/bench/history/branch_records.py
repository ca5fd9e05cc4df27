"""The records of a branch in the order of its commits, with their figures of one metric, and the
changes of level in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path

from gpurun.bench.record_of_launches import run_figures
from gpurun.bench.trees.git import Repository, open_repository
from gpurun.bench.workload import Work, figure
from gpurun.errors import GpurunError
from gpurun.records.bench.benchmark import BenchmarkPurpose, BenchmarkRecord, utc_moment
from gpurun.records.bench.metrics import Metric
from gpurun.stats.change_points import ChangePlan, Drift, LevelChange, Point, find_trend
from gpurun.stats.descriptive import geometric_mean

PURPOSES = (BenchmarkPurpose.BENCH, BenchmarkPurpose.COMPARE)
"""Purposes that a history shows, and that a baseline may have; others are planted slow-downs, other
settings, and commits in a search."""
PLAN = ChangePlan(most_points=150)
"""In a longer history only the newest commits are searched: time grows with the cube."""


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


@dataclass(frozen=True)
class Measured:
    """A record and the positive figures of its launches; there is at least one."""

    record: BenchmarkRecord
    figures: tuple[float, ...]

    @property
    def value(self) -> float:
        """The geometric mean: what is compared is ratios."""
        return geometric_mean(self.figures)

    @property
    def at(self) -> float:
        """When it was measured, in seconds since 1970."""
        return utc_moment(self.record.time).timestamp()

    @property
    def run(self) -> Point:
        """It as one run of a series, with the figure of each launch."""
        return Point(self.record.id, self.figures, self.at)


def measured(metric: Metric, record: BenchmarkRecord) -> Measured | None:
    """The record with its figures, None where it failed or has none: nothing stands for 0."""
    if record.error is not None:
        return None
    launches = (figure(metric, x, counts_samples(record)) for x in record.launches if not x.error)
    usable = _usable(launches) or _usable([figure(metric, record, counts_samples(record))])
    return Measured(record, tuple(usable)) if usable else None


def counts_samples(record: BenchmarkRecord) -> bool:
    """True if its throughput is in samples/s."""
    return record.samples_per_second is not None


def series_key(record: BenchmarkRecord) -> object:
    """The key that two records must share for their figures to be compared."""
    work = (record.args, record.secrets_sha256, record.batch_size, record.parameters)
    return record.benchmark, record.fingerprint.key, work, counts_samples(record)


def work_of(record: BenchmarkRecord) -> Work:
    """The work of the record's launches."""
    return Work(record.batch_size, record.parameters, record.steps if record.whole else None)


def trend_of(
    metric: Metric, series: Sequence[Measured]
) -> tuple[tuple[LevelChange, ...], Drift | None]:
    """The changes of level, oldest first, with indices into `series` for commits; and the drift.

    `series` is in the order of commits. Records of one commit are one point; a tree with
    uncommitted changes is none.
    """
    clean = [(i, one) for i, one in enumerate(series) if not one.record.dirty]
    points = []
    for _, group in groupby(clean, lambda pair: pair[1].record.commit or pair[1].record.id):
        same = list(group)
        at = math.fsum(one.at for _, one in same) / len(same)
        points.append(Point(str(same[0][0]), tuple(one.value for _, one in same), at))
    return find_trend(points, metric.higher_is_better, PLAN)


def pooled(records: Sequence[BenchmarkRecord]) -> BenchmarkRecord:
    """The newest record with the figures and launches of all of them, oldest first."""
    launches = tuple(launch for record in records for launch in record.launches)
    return replace(records[-1], **run_figures(records), launches=launches)


def _usable(figures: Iterable[float | None]) -> list[float]:
    return [float(f) for f in figures if f is not None and math.isfinite(f) and f > 0]
