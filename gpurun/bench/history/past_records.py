"""The records of a branch that stand for its baseline when nothing of it is launched."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpurun.bench.history.branch import Branch
from gpurun.bench.history.measured_records import Measured, changes_of, counts_samples, work_of
from gpurun.bench.history.prediction_interval import LEAST_RUNS
from gpurun.bench.trees.git import Repository, incomparable, short
from gpurun.bench.workload import refuse_changed
from gpurun.errors import GpurunError
from gpurun.formatting.number_text import count
from gpurun.records.bench.benchmark import (
    INTERRUPTED,
    AcceptedBaseline,
    BenchmarkFingerprint,
    BenchmarkRecord,
)
from gpurun.records.bench.metrics import Metric

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
    if len(here) < LEAST_RUNS and past:
        other = difference(past[-1].fingerprint, current.fingerprint)
        raise no_baseline(
            f"of {count(len(past), 'record')} only {len(here)} with this fingerprint: {other}"
            if len(here) < len(past)
            else f"only {count(len(here), 'record')}, and {LEAST_RUNS} are needed"
        )
    change = changed_work(here[-1], current) if here else None
    refuse_changed(change, "compare with records made after the commit that changed it")
    same = [r for r in here if changed_work(r, current) is None]
    if len(same) < LEAST_RUNS:
        raise no_baseline(
            f"only {len(same)} of {count(len(here), 'record')} of this workload, "
            f"and {LEAST_RUNS} are needed"
        )
    return same


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


def since_accepted(
    past: Sequence[BenchmarkRecord],
    baselines: Iterable[AcceptedBaseline],
    repository: Repository,
    end: str,
) -> tuple[list[BenchmarkRecord], AcceptedBaseline | None]:
    """Only the records since the baseline that was last accepted in the history of commit `end`.

    `baselines`: of this benchmark and fingerprint, oldest first.
    """
    for accepted in reversed(tuple(baselines)):
        if accepted.commit is None:
            continue
        holding = repository.descendants(accepted.commit, end) | {accepted.commit}
        if end in holding:
            return [r for r in past if r.commit in holding], accepted
    return list(past), None


@dataclass(frozen=True)
class LastChange:
    """The last change of level of one metric, most likely with `commit`.

    The new level surely holds from `series[start]` on: the change may have come with one of several
    commits. `size`: of the metric, a fraction.
    """

    metric: Metric
    start: int
    commit: str | None
    size: float

    def told(self) -> str:
        """A sentence about the change and its commit."""
        where = "" if self.commit is None else f" with {short(self.commit)}"
        return f"the {self.metric.value} of the branch changed{where} ({self.size * 100:+.1f} %)"


def last_change(metric: Metric, series: Sequence[Measured]) -> LastChange | None:
    """The last change in a series in the order of commits, None where there is none."""
    changes = changes_of(metric, series)
    if not changes:
        return None
    last = changes[-1]
    commit = series[int(last.commit)].record.commit
    return LastChange(metric, int(last.latest), commit, last.change)


def newest(series: Sequence[Measured], most: int) -> tuple[Measured, ...]:
    """The last so many of a series in the order of commits, in the order of time."""
    return tuple(sorted(series[-most:], key=lambda one: one.at))


def _words(args: Sequence[str]) -> str:
    return repr(shlex.join(args)) if args else "none"
