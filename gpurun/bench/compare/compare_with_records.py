"""Compares the record of one run with past records of its branch: nothing of these is launched.

The run is launched here (`--from-history`), or its record was stored, by any machine (`--results`).
Both are weaker than launches in turn, because the machine may have drifted since the records.
`gpurun.bench.history.past_records` decides, and describes its limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING

from gpurun.bench.benchmark_launcher import isolation
from gpurun.bench.benchmarks import GATED, Benchmark
from gpurun.bench.compare.compare_sides import CompareRequest, choose_baseline
from gpurun.bench.compare.comparison_document import Compared, comparison
from gpurun.bench.compare.pair_runner import Findings
from gpurun.bench.history.branch_records import PURPOSES, Measured, branch_up_to, measured, pooled
from gpurun.bench.history.past_records import (
    LEAST_RUNS,
    MOST_RUNS,
    NewRun,
    comparable,
    enough,
    judge_new_run,
    last_change,
    no_baseline,
    since_accepted,
    usable,
)
from gpurun.bench.record_of_launches import DEFAULT_LAUNCHES, Version, keep, measure, version_of
from gpurun.bench.store.record_files import read_records
from gpurun.bench.trees.git import Repository, incomparable, open_repository, short
from gpurun.bench.unfinished import ended_by
from gpurun.errors import ExitCode, GpurunError
from gpurun.formatting.number_text import count
from gpurun.pairs.engine import ToldOnce
from gpurun.pairs.estimate import LOOKS
from gpurun.pairs.gate import Verdict
from gpurun.records.bench.benchmark import BenchmarkPurpose, BenchmarkRecord, utc_moment
from gpurun.records.bench.comparison import Comparison
from gpurun.records.bench.metrics import Metric
from gpurun.rundir import new_run
from gpurun.same.curve_distances import compare_training

if TYPE_CHECKING:
    from gpurun.bench.store.benchmark_store import BenchmarkStore
    from gpurun.trials.signal_guard import SignalGuard

ELSEWHERE = "give its past records: --baseline FOLDER, such as .gpurun/benchmarks"
UNDECIDED = (
    "one run cannot separate that from the noise between runs: launch both sides "
    "one after the other"
)


def compare_with_history(
    benchmark: Benchmark,
    asked: CompareRequest,
    store: BenchmarkStore,
    launches: int | None,
    interruption: SignalGuard,
) -> Comparison:
    """Measure the user's tree, keep its record, and hold it against those of the baseline's branch.

    `launches`: None for as many as the records have. It reports its end as `compare` does.
    """
    course = RecordComparison(benchmark, asked, store, "leave out --from-history")

    def work() -> None:
        repository = open_repository(benchmark.folder)
        baseline = choose_baseline(repository, asked.ref)
        here = version_of(repository)
        course.compared = Compared(Version(baseline.commit, None, False), here)
        course.remember(baseline.why)
        past = course.past(repository, baseline.commit)
        usual = median_low(len(record.launches) for record in past[-MOST_RUNS:])
        most = launches or min(max(usual, DEFAULT_LAUNCHES), LOOKS[-1])
        mode = isolation(benchmark.folder, asked.in_place, asked.tell)
        current = measure(benchmark, new_run(asked.home), mode, most, asked.tell, here)
        current = replace(current, purpose=BenchmarkPurpose.COMPARE)
        keep(current, asked.keep, asked.tell)
        course.compared = replace(course.compared, records=(None, current))
        if interruption.signal is not None:
            raise KeyboardInterrupt
        course.judge(past, repository)

    return course.document(work, interruption)


def compare_stored(
    benchmark: Benchmark,
    current: BenchmarkRecord,
    baseline: Path | None,
    asked: CompareRequest,
    store: BenchmarkStore,
    interruption: SignalGuard,
) -> Comparison:
    """Hold a record against those in `baseline`, by default those of the store that are of commits
    before its own. Then the store keeps the record, so that its history grows.
    """
    course = RecordComparison(benchmark, asked, store, "gpurun bench --compare REF")
    version = Version(current.commit, current.branch, current.dirty)
    course.compared = Compared(Version(), version, (None, current))
    if baseline is None:
        keep(current, asked.keep, asked.tell)

    def work() -> None:
        if baseline is not None:
            course.judge(_baseline(baseline, current), None)
            return
        repository, parent = _parent(current.commit)
        course.compared = replace(course.compared, baseline=Version(parent, None, False))
        course.judge(course.past(repository, parent), repository)

    return course.document(work, interruption)


def read_results(path: Path) -> list[BenchmarkRecord]:
    """The newest record of each benchmark in a file; `GpurunError` where there is none."""
    newest = {record.benchmark: record for record in read_records(path)}
    if not newest:
        raise GpurunError(
            f"{path} holds no record of a benchmark", "write it with gpurun bench --json FILE"
        )
    return list(newest.values())


def _baseline(path: Path, current: BenchmarkRecord) -> list[BenchmarkRecord]:
    """The records of its benchmark in a file or folder that can stand for the baseline."""
    try:
        records = read_records(path)
    except GpurunError as error:
        raise incomparable(error.what, error.todo) from None
    own = [r for r in records if r.benchmark == current.benchmark and r.id != current.id]
    past = [r for r in own if not r.dirty and r.error is None]
    return enough(past, f"{path} has {count(len(past), 'usable record')} of {current.benchmark}")


def _parent(commit: str | None) -> tuple[Repository, str]:
    """The repository that knows the commit, and the commit before it."""
    if commit is None:
        raise incomparable("the results name no commit", ELSEWHERE)
    try:
        repository = open_repository(Path.cwd())
        repository.resolve(commit)
        parent = repository.first_parent(commit)
    except GpurunError as error:
        raise incomparable(
            f"the commits before {short(commit)} are not known here: {error.what}",
            f"fetch the whole history (fetch-depth: 0), or {ELSEWHERE}",
        ) from None
    if parent is None:
        raise incomparable(
            f"{short(commit)} is the first commit: there is nothing before it",
            "judge from the second commit on",
        )
    return repository, parent


@dataclass
class RecordComparison:
    """The findings so far; they stay here, whatever ends the comparison.

    `instead`: how both sides are launched in place of this. `used`: the baseline's records in the
    order of commits.
    """

    benchmark: Benchmark
    asked: CompareRequest
    store: BenchmarkStore
    instead: str
    findings: Findings = field(default_factory=Findings)
    compared: Compared = field(default_factory=lambda: Compared(Version(), Version()))
    used: list[BenchmarkRecord] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.remember = ToldOnce(self.asked.tell, self.findings.notes)

    def document(self, work: Callable[[], None], interruption: SignalGuard) -> Comparison:
        """Do the work and report its result; errors of ours and of the command line are raised."""
        unfinished = None
        try:
            work()
        except BaseException as error:
            name, code = self.benchmark.name, interruption.exit_code
            unfinished = ended_by(error, name, code, "interrupted")
        finally:
            interruption.hold()
        # older records than the newest may have trained otherwise
        sides = self.used[-1:], filter(None, self.compared.records[1:])
        losses = [[x.loss_curve for r in s for x in r.launches if not x.error] for s in sides]
        found = comparison(
            self.benchmark,
            self.findings,
            self.compared,
            time.monotonic() - self.started,
            unfinished,
            compare_training(*losses),
            self.asked.fail_on_training_change,
        )
        if found.verdict == Verdict.INCONCLUSIVE.value:
            found = replace(found, recommendation=f"{UNDECIDED} ({self.instead})")
        return replace(found, baseline_records=len(self.used))

    def past(self, repository: Repository, end: str) -> list[BenchmarkRecord]:
        """The records up to a commit that could stand for the baseline, of any machine."""
        try:
            records = self.store.query(self.benchmark.name, purposes=PURPOSES)
        except GpurunError as error:
            raise incomparable(error.what, error.todo) from None
        found = usable(records, branch_up_to(repository, end, None))
        told = f"{self.benchmark.name} has {count(len(found), 'record')} of commits up to"
        return enough(found, f"{told} {short(end)}")

    def judge(self, past: list[BenchmarkRecord], repository: Repository | None) -> None:
        """Judge the record by those of the baseline. `repository`: None where nobody knows how the
        commits follow each other."""
        current = self.compared.records[1]
        assert current is not None
        if current.error is not None:
            raise GpurunError(
                f"the benchmark {self.benchmark.name} failed: {current.error}",
                f"the whole output is in {current.launches[-1].run_dir}/output.log",
                ExitCode.BENCHMARK_FAILED,
            )
        past = comparable(past, current)
        if repository is not None:
            end = self.compared.baseline.commit or ""
            past, told = since_accepted(past, current, self.store, repository, end)
            for line in told:
                self.remember(line)
        self._judge(past, current)
        last = self.used[-1]
        commits: tuple[str, ...] = ()
        if repository is not None:
            ends = (last.commit or "", self.compared.current.commit or "")
            commits = repository.commits_between(*ends)
        version = Version(last.commit, last.branch, False)
        records = (pooled(self.used), current)
        self.compared = replace(self.compared, baseline=version, records=records, commits=commits)
        days = sorted(f"{utc_moment(record.time):%Y-%m-%d}" for record in self.used)
        self.remember(
            f"compared with {count(len(self.used), 'record')} "
            f"({' to '.join(dict.fromkeys((days[0], days[-1])))}): weaker than launching both "
            "sides one after the other, because the machine may have drifted since"
        )

    def _judge(self, past: list[BenchmarkRecord], current: BenchmarkRecord) -> None:
        """The verdict over all metrics, by the records since the last change of any of them."""
        findings = self.findings
        findings.by_samples = current.samples_per_second is not None
        start = 0
        for metric in self.benchmark.metrics:
            series = _series(metric, past)
            change = last_change(metric, series)
            if change is None or measured(metric, current) is None:
                continue
            first, told = change
            since = past.index(series[first].record)
            enough(past[since:], f"{told}: {count(len(past) - since, 'record')} since")
            self.remember(f"{told}: only records since then count")
            start = max(start, since)
        self.used = past[start:][-MOST_RUNS:]
        held = []
        for metric in self.benchmark.metrics:
            now, runs = measured(metric, current), _series(metric, self.used)
            if now is None or len(runs) < LEAST_RUNS:
                self._leave_out(metric, now)
                continue
            threshold = findings.gated[metric] = self.benchmark.thresholds[metric]
            held.append(NewRun(metric, [one.run for one in runs], now.run, threshold))
        if not held:
            raise no_baseline("too few records have a figure of any gated metric")
        findings.result = judge_new_run(held)

    def _leave_out(self, metric: Metric, now: Measured | None) -> None:
        where = "here" if now is None else "in enough of the records"
        if self.benchmark.metrics != GATED:
            raise GpurunError(
                f"{metric.value} was not measured {where}",
                "gate a metric that every launch reports: --metrics throughput",
                ExitCode.BENCHMARK_FAILED if now is None else ExitCode.NO_BASELINE,
            )
        self.remember(f"{metric.value} was not measured {where} and is not gated")


def _series(metric: Metric, records: Sequence[BenchmarkRecord]) -> list[Measured]:
    found = (measured(metric, record) for record in records)
    return [one for one in found if one is not None]
