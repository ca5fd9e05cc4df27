"""The records of a branch that stand for its baseline when nothing of it is launched, and the
decision of `--compare REF --from-history` by them: is a new run worse than those before it?

The machine may have changed between the records and the new run, and nothing cancels that, as pairs
would. So the new run is held against the interval in which one more run falls if nothing has
changed: Student's t prediction interval. The unit is a run, not a launch. The error of the new run
itself remains however many records there are.

Simulation (`scripts/simulate_from_history.py`) gives the two factors by which the interval is
widened. They stand for noise that is correlated or has heavy tails, which few records do not show.
With 4 to 10 records and the factors, at most 1 % of equal runs regress, at most 5 % of slowdowns
of the threshold pass; without them up to 2 % and 8.5 %.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpurun.bench.history.branch_records import (
    Branch,
    Measured,
    counts_samples,
    trend_of,
    work_of,
)
from gpurun.bench.trees.git import Repository, incomparable, short
from gpurun.bench.workload import refuse_changed
from gpurun.errors import GpurunError
from gpurun.formatting.number_text import count, signed_percent
from gpurun.pairs import gate
from gpurun.pairs.gate import GateResult, MetricResult, Verdict
from gpurun.records.bench.benchmark import INTERRUPTED, BenchmarkFingerprint, BenchmarkRecord
from gpurun.records.bench.metrics import Metric
from gpurun.stats.change_points import Point
from gpurun.stats.descriptive import SD_FLOOR, mean, standard_deviation, t_quantile, t_upper_tail

if TYPE_CHECKING:
    from gpurun.bench.store.benchmark_store import BenchmarkStore

PAIRS = "or launch both sides: leave out --from-history"
MOST_RUNS, LEAST_RUNS = 10, 4
"""The number of runs that stand for the baseline."""
LOWER_WIDENING, UPPER_WIDENING = 1.4, 1.25
"""Of the error of both bounds, fitted to simulated records whose noise is correlated or has heavy
tails."""


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
    changes, _ = trend_of(metric, series)
    if not changes:
        return None
    commit = series[int(changes[-1].commit)].record.commit
    where = "" if commit is None else f" with {short(commit)}"
    told = f"the {metric.value} of the branch changed{where}"
    return int(changes[-1].latest), f"{told} ({signed_percent(changes[-1].change)})"


def _words(args: Sequence[str]) -> str:
    return repr(shlex.join(args)) if args else "none"


@dataclasses.dataclass(frozen=True)
class NewRun:
    """One gated metric: the figures of each launch, run by run, oldest first, all positive.

    `threshold`: the slowdown that must not pass, a fraction.
    """

    metric: Metric
    past: Sequence[Point]
    current: Point
    threshold: float


def judge_new_run(held: Sequence[NewRun]) -> GateResult:
    """The verdict over all metrics; the chance of a false regression is shared among them.

    One regressed metric is a regression; all must pass to pass. Each has `LEAST_RUNS` or more.
    """
    metrics = tuple(_judged(one, len(held)) for one in held)
    verdict = gate.together([metric.verdict for metric in metrics])
    return GateResult(Verdict.INCONCLUSIVE if verdict is Verdict.MORE else verdict, 0, metrics)


def _judged(held: NewRun, metrics: int) -> MetricResult:
    worse, error = _shift(held)
    freedom = len(held.past) - 1
    low_error, high_error = LOWER_WIDENING * error, UPPER_WIDENING * error
    low = worse - t_quantile(freedom, 1 - gate.REGRESSION_ERROR / metrics) * low_error
    high = worse + t_quantile(freedom, 1 - gate.PASS_ERROR) * high_error
    irrelevant = held.metric.log_of_slowdown(min(gate.IRRELEVANT, held.threshold))
    tail = metrics * t_upper_tail(freedom, (worse - irrelevant) / low_error)
    return gate.answer(held.metric, held.threshold, irrelevant, (low, worse, high), tail)


def _shift(held: NewRun) -> tuple[float, float]:
    """The logarithm by which the new run is worse than expected, and its standard error."""
    runs = (*held.past, held.current)
    logs = [[held.metric.log_worse(1.0, value) for value in run.values] for run in runs]
    *past, new = map(mean, logs)
    spread = max(standard_deviation(past), SD_FLOOR)
    error = spread * math.sqrt(1 + 1 / len(past))
    return new - mean(past), math.hypot(error, math.sqrt(_unseen(logs)))


def _unseen(logs: Sequence[Sequence[float]]) -> float:
    """The variance that the new run has beyond the others since it has fewer launches than they."""
    freedom = sum(len(run) - 1 for run in logs)
    if freedom == 0:
        return 0.0
    squares = math.fsum((value - mean(run)) ** 2 for run in logs for value in run)
    *past, current = (1 / len(run) for run in logs)
    return max(0.0, current - mean(past)) * squares / freedom
