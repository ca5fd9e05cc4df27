"""The records of a history with their figures of one metric, and the changes of level in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from gpurun.bench.record_of_launches import run_figures
from gpurun.bench.workload import Work, figure
from gpurun.records.bench.benchmark import BenchmarkRecord, utc_moment
from gpurun.records.bench.metrics import Metric
from gpurun.stats.change_points import Change, ChangePlan, Point, find_changes
from gpurun.stats.descriptive import geometric_mean

PLAN = ChangePlan(most_points=150)
"""In a longer history only the newest commits are searched: time grows with the cube."""


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


def changes_of(metric: Metric, series: Sequence[Measured]) -> tuple[Change, ...]:
    """The changes of level, oldest first; in place of commits they have indices into `series`.

    `series` is in the order of commits. Records of one commit are one point; a tree with
    uncommitted changes is none.
    """
    clean = [(i, one) for i, one in enumerate(series) if not one.record.dirty]
    points = []
    for _, group in groupby(clean, lambda pair: pair[1].record.commit or pair[1].record.id):
        same = list(group)
        at = math.fsum(one.at for _, one in same) / len(same)
        points.append(Point(str(same[0][0]), tuple(one.value for _, one in same), at))
    return find_changes(points, metric is Metric.THROUGHPUT, PLAN)


def pooled(records: Sequence[BenchmarkRecord]) -> BenchmarkRecord:
    """The newest record with the figures and launches of all of them, oldest first."""
    launches = tuple(launch for record in records for launch in record.launches)
    return replace(records[-1], **run_figures(records), launches=launches)


def _usable(figures: Iterable[float | None]) -> list[float]:
    return [float(f) for f in figures if f is not None and math.isfinite(f) and f > 0]
