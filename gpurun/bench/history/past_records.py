"""The records of a branch that stand for its baseline when nothing of it is launched."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpurun.bench.history.branch_records import (
    Branch,
    Measured,
    changes_of,
    counts_samples,
    work_of,
)
from gpurun.bench.history.prediction_interval import LEAST_RUNS
from gpurun.bench.trees.git import Repository, incomparable, short
from gpurun.bench.workload import refuse_changed
from gpurun.errors import GpurunError
from gpurun.formatting.number_text import count, signed_percent
from gpurun.records.bench.benchmark import (
    INTERRUPTED,
    BenchmarkFingerprint,
    BenchmarkRecord,
)
from gpurun.records.bench.metrics import Metric

if TYPE_CHECKING:
    from gpurun.bench.store.benchmark_store import BenchmarkStore

PAIRS = "or launch both sides: leave out --from-history"


def usable(records: Iterable[BenchmarkRecord], branch: Branch) -> list[BenchmarkRecord]:
    """The records of commits of the branch, in their order, that were measured to their end."""
    return [
        r
        for r in branch.ordered(records)
        if not r.dirty and r.error is None and r.status != INTERRUPTED
    ]


def comparable(past: Sequence[BenchmarkRecord], current: BenchmarkRecord) -> list[BenchmarkRecord]:
    """The records of the same fingerprint and the same work as the current one.

    `GpurunError` (exit code 4) where there are too few, or where the newest of them did other work,
    by name.
    """
    here = [r for r in past if r.fingerprint == current.fingerprint]
    if len(here) < LEAST_RUNS:
        other = difference(past[-1].fingerprint, current.fingerprint)
        records = count(len(past), "record")
        raise no_baseline(f"of {records} only {len(here)} with this fingerprint: {other}")
    refuse_changed(
        changed_work(here[-1], current),
        "compare with records made after the commit that changed it",
    )
    same = [r for r in here if changed_work(r, current) is None]
    return enough(same, f"only {len(same)} of {count(len(here), 'record')} of this workload")


def changed_work(before: BenchmarkRecord, now: BenchmarkRecord) -> str | None:
    """The difference in work from `before` to `now`, in words; None if none is known."""
    if before.args != now.args:
        return f"the arguments are {_words(now.args)}, and {_words(before.args)} in the baseline"
    if before.secrets_sha256 != now.secrets_sha256:
        return "a secret among the arguments is not that of the baseline"
    if counts_samples(before) != counts_samples(now):
        return "samples could be counted on one side only"
    return work_of(now).difference(work_of(before))


def difference(before: BenchmarkFingerprint, now: BenchmarkFingerprint) -> str:
    """The first part in which two fingerprints differ, in words."""
    for field in dataclasses.fields(before):
        old, new = getattr(before, field.name), getattr(now, field.name)
        if old != new:
            name = field.name.replace("_", " ")
            return f"the {name} is {new} here, and {old} in the newest of them"
    return "nothing differs"


def no_baseline(what: str) -> GpurunError:
    """The error for too few records."""
    return incomparable(what, f"run gpurun bench on that branch more often, {PAIRS}")


def enough(records: list[BenchmarkRecord], told: str) -> list[BenchmarkRecord]:
    """The records, if they can stand for a baseline; else `no_baseline`."""
    if len(records) < LEAST_RUNS:
        raise no_baseline(f"{told}, and {LEAST_RUNS} are needed")
    return records


def since_accepted(
    past: list[BenchmarkRecord],
    current: BenchmarkRecord,
    store: BenchmarkStore,
    repository: Repository,
    end: str,
) -> tuple[list[BenchmarkRecord], tuple[str, ...]]:
    """Only the records since the baseline that was last accepted in the history of commit `end`,
    and a line that says so."""
    for one in reversed(store.baselines(current.benchmark)):
        if one.commit is None or one.fingerprint != current.fingerprint.key:
            continue
        own = store.get(one.record)
        if own is not None and changed_work(own, current) is not None:
            continue
        holding = repository.descendants(one.commit, end) | {one.commit}
        if end in holding:
            told = f"commit {short(one.commit)} was accepted by {one.accepted_by}"
            since = [r for r in past if r.commit in holding]
            enough(since, f"{told}: of {count(len(since), 'record')} since")
            return since, (f"{told}: only records since then count",)
    return past, ()


def last_change(metric: Metric, series: Sequence[Measured]) -> tuple[int, str] | None:
    """The last change of level in a series in the order of commits, in words; None without one.

    The new level surely holds from the first figure on: the index of a record in the series. The
    change may have come with one of several commits.
    """
    changes = changes_of(metric, series)
    if not changes:
        return None
    commit = series[int(changes[-1].commit)].record.commit
    where = "" if commit is None else f" with {short(commit)}"
    told = f"the {metric.value} of the branch changed{where}"
    return int(changes[-1].latest), f"{told} ({signed_percent(changes[-1].change)})"


def _words(args: Sequence[str]) -> str:
    return repr(shlex.join(args)) if args else "none"
