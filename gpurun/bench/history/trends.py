"""Records of a store as trends: never two fingerprints, nor two workloads, in one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from gpurun.bench.history.branch_records import (
    Branch,
    Measured,
    counts_samples,
    measured,
    series_key,
    trend_of,
)
from gpurun.records.bench.benchmark import AcceptedBaseline, BenchmarkRecord, utc_moment
from gpurun.records.bench.history import (
    HistoryChange,
    HistoryDrift,
    HistoryLevel,
    HistoryPoint,
    HistoryReference,
    ReferenceKind,
    Trend,
)
from gpurun.records.bench.metrics import Metric
from gpurun.stats.change_points import Drift, LevelChange
from gpurun.stats.descriptive import geometric_mean

LEAST_USUAL = 3
"""Fewest earlier records that say what is usual."""


Accepted = tuple[AcceptedBaseline, BenchmarkRecord]
"""A baseline that was accepted, and its record."""


def trends(
    metric: Metric,
    records: Iterable[BenchmarkRecord],
    accepted: Sequence[Accepted],
    branch: Branch,
) -> tuple[Trend, ...]:
    """The trends of those records that the branch holds and in which this was measured.

    `accepted`: oldest first.
    """
    groups: dict[object, list[Measured]] = {}
    for record in branch.ordered(records):
        one = measured(metric, record)
        if one is not None:
            groups.setdefault(series_key(record), []).append(one)
    known = [pair for pair in accepted if branch.holds(pair[1])]
    found = [_trend(metric, series, known, branch) for series in groups.values()]
    newest = {id(t): max(utc_moment(point.time) for point in t.points) for t in found}
    found.sort(key=lambda trend: newest[id(trend)], reverse=True)
    return tuple(sorted(found, key=lambda trend: trend.benchmark))


def unit_of(metric: Metric, by_samples: bool) -> str:
    """The unit of a figure."""
    return {
        Metric.THROUGHPUT: "samples/s" if by_samples else "steps/s",
        Metric.STEP_TIME: "s",
        Metric.PEAK_MEMORY: "bytes",
        Metric.ENERGY: "J/sample" if by_samples else "J",
        Metric.GPU_UTILIZATION: "%",
    }[metric]


def _trend(
    metric: Metric, series: Sequence[Measured], accepted: Sequence[Accepted], branch: Branch
) -> Trend:
    first = series[0].record
    changes, drift = trend_of(metric, series)
    levels = _levels(series, changes)
    reference = _accepted(metric, first, accepted) or _level_before(series, levels)
    return Trend(
        benchmark=first.benchmark,
        metric=metric.value,
        unit=unit_of(metric, counts_samples(first)),
        higher_is_better=metric.higher_is_better,
        fingerprint=first.fingerprint,
        fingerprint_key=first.fingerprint.key,
        args=first.args,
        batch_size=first.batch_size,
        parameters=first.parameters,
        points=tuple(_point(one, branch) for one in series),
        levels=levels,
        changes=tuple(_change(change, series, branch) for change in changes),
        reference=reference,
        change=None if reference is None else series[-1].value / reference.value - 1,
        drift=None if drift is None else _drift(drift),
    )


def _drift(drift: Drift) -> HistoryDrift:
    return HistoryDrift(drift.direction.value, drift.change, drift.interval, drift.per_point)


def _point(one: Measured, branch: Branch) -> HistoryPoint:
    record = one.record
    return HistoryPoint(
        record=record.id,
        commit=record.commit,
        subject=branch.subjects.get(record.commit or ""),
        branch=record.branch,
        dirty=record.dirty,
        time=record.time,
        value=one.value,
        launches=one.figures,
    )


def _levels(series: Sequence[Measured], changes: Sequence[LevelChange]) -> tuple[HistoryLevel, ...]:
    """Between changes; uncommitted trees count only where there is nothing else."""
    bounds = (0, *(int(change.commit) for change in changes), len(series))
    levels = []
    for start, stop in pairwise(bounds):
        part = series[start:stop]
        clean = [one.value for one in part if not one.record.dirty]
        value = geometric_mean(clean or [one.value for one in part])
        levels.append(HistoryLevel(start, stop, value))
    return tuple(levels)


def _change(change: LevelChange, series: Sequence[Measured], branch: Branch) -> HistoryChange:
    start = int(change.commit)
    record = series[start].record
    return HistoryChange(
        start=start,
        commit=record.commit,
        subject=branch.subjects.get(record.commit or ""),
        earliest=series[int(change.earliest)].record.commit,
        latest=series[int(change.latest)].record.commit,
        unmeasured=_unmeasured(start, series, branch),
        time=record.time,
        direction=change.direction.value,
        change=change.change,
        change_confidence_interval=change.interval,
    )


def _unmeasured(start: int, series: Sequence[Measured], branch: Branch) -> int | None:
    """The number of commits between a point and the one before it."""
    if not branch.whole:
        return None
    clean = [one for one in series[:start] if not one.record.dirty]
    last, here = (
        branch.places.get(r.commit or "") for r in (clean[-1].record, series[start].record)
    )
    return None if last is None or here is None else here - last - 1


def _accepted(
    metric: Metric, like: BenchmarkRecord, accepted: Sequence[Accepted]
) -> HistoryReference | None:
    """The last that was accepted of the same trend as the record `like`."""
    for by, record in reversed(accepted):
        one = measured(metric, record)
        if one is not None and series_key(record) == series_key(like):
            kind, who = ReferenceKind.ACCEPTED, (by.accepted_by, by.time, by.reason)
            return HistoryReference(kind, one.value, by.commit, by.record, *who)
    return None


def _level_before(
    series: Sequence[Measured], levels: Sequence[HistoryLevel]
) -> HistoryReference | None:
    """The level before the last change, else what the earlier records say is usual."""
    if len(levels) > 1:
        before = levels[-2]
        commit = series[before.stop - 1].record.commit
        return HistoryReference(ReferenceKind.PREVIOUS_LEVEL, before.value, commit)
    earlier = [one for one in series[:-1] if not one.record.dirty]
    if len(earlier) < LEAST_USUAL:
        return None
    value = geometric_mean([one.value for one in earlier])
    return HistoryReference(ReferenceKind.USUAL_LEVEL, value, earlier[-1].record.commit)
