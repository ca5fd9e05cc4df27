"""Compares one benchmark with the records of a branch, without a launch of the baseline.

This is weaker than launches in turn, because the machine may have drifted since the records.
`gpurun.bench.history.prediction_interval` decides, and describes its limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import TYPE_CHECKING

from gpurun.bench.benchmarks import GATED, Benchmark
from gpurun.bench.compare.compare_commits import CompareRequest
from gpurun.bench.compare.compare_training import compare_training
from gpurun.bench.compare.comparison_document import Compared, comparison
from gpurun.bench.compare.pair_runner import Findings
from gpurun.bench.history.accepted_baselines import of_same_work
from gpurun.bench.history.branch import BASELINES, branch_up_to
from gpurun.bench.history.measured_records import Measured, measured, pooled
from gpurun.bench.history.past_records import (
    comparable,
    last_change,
    newest,
    no_baseline,
    since_accepted,
    usable,
)
from gpurun.bench.history.prediction_interval import LEAST_RUNS, MOST_RUNS, NewRun, judge_new_run
from gpurun.bench.record_of_launches import Version, keep, version_of
from gpurun.bench.single_tree import DEFAULT_LAUNCHES, measure
from gpurun.bench.trees.baseline_commit import choose_baseline
from gpurun.bench.trees.git import Repository, Revision, open_repository, short
from gpurun.bench.unfinished import ended_by
from gpurun.errors import ExitCode, GpurunError
from gpurun.formatting.number_text import count
from gpurun.isolation.available_modes import require
from gpurun.pairs.gate import Verdict
from gpurun.records.bench.benchmark import BenchmarkPurpose, BenchmarkRecord, utc_moment
from gpurun.records.bench.comparison import Comparison, TrainingComparison
from gpurun.records.bench.metrics import Metric
from gpurun.rundir import new_run

if TYPE_CHECKING:
    from gpurun.bench.store.benchmark_store import BenchmarkStore
    from gpurun.trials.signal_guard import SignalGuard

MOST_LAUNCHES = 16
"""As many as a comparison in turn takes at most, unless more are asked for."""
UNDECIDED = (
    "one run cannot separate that from the noise between runs: launch both sides "
    "one after the other (leave out --from-history)"
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
    started = time.monotonic()
    course = HistoryComparison(benchmark, asked, store, launches)
    return course.document(started, lambda: course.run(interruption), interruption)


@dataclass
class HistoryComparison:
    """The findings so far; they stay here, whatever ends the comparison.

    `used`: the baseline's records in the order of commits. `undecided`: what to do where one run
    cannot decide.
    """

    benchmark: Benchmark
    asked: CompareRequest
    store: BenchmarkStore
    launches: int | None
    findings: Findings = field(default_factory=Findings)
    compared: Compared = field(default_factory=lambda: Compared(Version(), Version()))
    used: list[BenchmarkRecord] = field(default_factory=list)
    undecided: str = UNDECIDED

    def document(
        self, started: float, work: Callable[[], None], interruption: SignalGuard
    ) -> Comparison:
        """Do the work and report its result; errors of ours and of the command line are raised.

        `started`: of `time.monotonic`.
        """
        unfinished = None
        try:
            work()
            if interruption.signal is not None:
                raise KeyboardInterrupt
        except BaseException as error:
            name, code = self.benchmark.name, interruption.exit_code
            unfinished = ended_by(error, name, code, "interrupted")
        finally:
            interruption.hold()
        found = comparison(
            self.benchmark,
            self.findings,
            self.compared,
            time.monotonic() - started,
            unfinished,
            self.training(),
            self.asked.fail_on_training_change,
        )
        if found.verdict == Verdict.INCONCLUSIVE.value:
            found = replace(found, recommendation=self.undecided)
        return replace(found, baseline_records=len(self.used))

    def run(self, interruption: SignalGuard) -> None:
        """Measure the user's tree, and judge it."""
        repository = open_repository(self.benchmark.folder)
        baseline = choose_baseline(repository, self.asked.ref)
        self.compared = Compared(Version(baseline.commit, None, False), version_of(repository))
        self._remember(baseline.why)
        past = self._past(repository, baseline.commit)
        current = self._measured(past)
        self.compared = replace(self.compared, records=(None, current))
        if interruption.signal is None:
            self.judge_against(past, current, repository)

    def judge_against(
        self, past: list[BenchmarkRecord], current: BenchmarkRecord, repository: Repository | None
    ) -> None:
        """Judge a record by those of the baseline. `repository`: None where nobody knows how the
        commits follow each other."""
        if current.error is not None:
            raise GpurunError(
                f"the benchmark {self.benchmark.name} failed: {current.error}",
                f"the whole output is in {current.launches[-1].run_dir}/output.log",
                ExitCode.BENCHMARK_FAILED,
            )
        same = comparable(past, current)
        if repository is not None:
            same = self._since_accepted(same, current, repository)
        self._judge(same, current)
        newest = self.used[-1]
        self.compared = replace(
            self.compared,
            baseline=Version(newest.commit, newest.branch, False),
            records=(pooled(self.used), current),
            commits=()
            if repository is None
            else _after(repository, newest.commit, self.compared.current.commit),
        )
        self._say_how_weak()

    def training(self) -> TrainingComparison:
        """The losses of this run against those of the newest record: older ones may have trained
        otherwise."""
        current = self.compared.records[1]
        known = (self.used[-1:], [] if current is None else [current])
        curves = ([x.loss_curve for r in side for x in r.launches if not x.error] for side in known)
        return compare_training(*curves)

    def _past(self, repository: Repository, end: str) -> list[BenchmarkRecord]:
        """The records that could stand for the baseline, of any machine."""
        try:
            records = self.store.query(self.benchmark.name, purposes=BASELINES)
        except GpurunError as error:
            raise GpurunError(error.what, error.todo, ExitCode.NO_BASELINE) from None
        past = usable(records, branch_up_to(repository, end, None))
        if len(past) < LEAST_RUNS:
            raise no_baseline(
                f"{self.benchmark.name} has {count(len(past), 'record')} of commits up to "
                f"{short(end)}, and --from-history needs {LEAST_RUNS}"
            )
        return past

    def _measured(self, past: Sequence[BenchmarkRecord]) -> BenchmarkRecord:
        """The record of the user's tree, which is kept."""
        benchmark, tell = self.benchmark, self.asked.tell
        mode, imperfection = require(benchmark.folder, in_place=self.asked.in_place)
        if imperfection:
            tell(imperfection)
        usual = median_low(len(record.launches) for record in past[-MOST_RUNS:])
        count = self.launches or min(max(usual, DEFAULT_LAUNCHES), MOST_LAUNCHES)
        version = self.compared.current
        record = measure(benchmark, new_run(self.asked.home), mode, count, tell, version)
        record = replace(record, purpose=BenchmarkPurpose.COMPARE)
        keep(record, self.asked.keep, self.asked.tell)
        return record

    def _since_accepted(
        self, past: list[BenchmarkRecord], current: BenchmarkRecord, repository: Repository
    ) -> list[BenchmarkRecord]:
        accepted_ones = self.store.baselines(self.benchmark.name, current.fingerprint.key)
        baselines = [one for one in accepted_ones if of_same_work(one, current, self.store)]
        end = self.compared.baseline.commit
        assert end is not None
        since, accepted = since_accepted(past, baselines, repository, end)
        if accepted is None:
            return past
        assert accepted.commit is not None
        told = f"commit {short(accepted.commit)} was accepted by {accepted.accepted_by}"
        if len(since) < LEAST_RUNS:
            raise no_baseline(
                f"{told}: of {count(len(since), 'record')} since, {LEAST_RUNS} are needed"
            )
        self._remember(f"{told}: only records since then count")
        return since

    def _judge(self, past: list[BenchmarkRecord], current: BenchmarkRecord) -> None:
        """The verdict over all metrics, by the records since the last change of any of them."""
        findings = self.findings
        findings.by_samples = current.samples_per_second is not None
        now = {m: measured(m, current) for m in self.benchmark.metrics}
        before = {m: _series(m, past) for m in self.benchmark.metrics}
        for metric, found in now.items():
            if found is None or len(before[metric]) < LEAST_RUNS:
                self._leave_out(metric, found)
                del before[metric]
        past = self._since_change(past, before)
        self.used = past[-MOST_RUNS:]
        held = []
        for metric, found in now.items():
            runs = newest(_series(metric, self.used), MOST_RUNS)
            if metric in before and found is not None and len(runs) >= LEAST_RUNS:
                findings.gated[metric] = self.benchmark.thresholds[metric]
                held.append(
                    NewRun(metric, [one.run for one in runs], found.run, findings.gated[metric])
                )
            elif metric in before:
                self._leave_out(metric, found)
        if not held:
            raise no_baseline("too few records have a figure of any gated metric")
        findings.result = judge_new_run(held)

    def _since_change(
        self, past: list[BenchmarkRecord], series: Mapping[Metric, Sequence[Measured]]
    ) -> list[BenchmarkRecord]:
        """The records on the level that the branch has now."""
        start, place = 0, {record.id: i for i, record in enumerate(past)}
        for metric, found in series.items():
            change = last_change(metric, found)
            if change is None:
                continue
            since = place[found[change.start].record.id]
            if len(past) - since < LEAST_RUNS:
                raise no_baseline(
                    f"{change.told()}: of {count(len(past) - since, 'record')} since, "
                    f"{LEAST_RUNS} are needed"
                )
            self._remember(f"{change.told()}: only records since then count")
            start = max(start, since)
        return past[start:]

    def _leave_out(self, metric: Metric, now: Measured | None) -> None:
        where = "here" if now is None else "in enough of the records"
        if self.benchmark.metrics != GATED:
            raise GpurunError(
                f"{metric.value} was not measured {where}",
                "gate a metric that every launch reports: --metrics throughput",
                ExitCode.BENCHMARK_FAILED if now is None else ExitCode.NO_BASELINE,
            )
        self._remember(f"{metric.value} was not measured {where} and is not gated")

    def _say_how_weak(self) -> None:
        days = sorted(f"{utc_moment(record.time):%Y-%m-%d}" for record in self.used)
        span = " to ".join(dict.fromkeys((days[0], days[-1])))
        self._remember(
            f"compared with {count(len(self.used), 'record')} ({span}): weaker than launching both "
            "sides one after the other, because the machine may have drifted since"
        )

    def _remember(self, line: str) -> None:
        self.findings.notes.append(line)
        self.asked.tell(line)


def _series(metric: Metric, records: Sequence[BenchmarkRecord]) -> list[Measured]:
    found = (measured(metric, record) for record in records)
    return [one for one in found if one is not None]


def _after(repository: Repository, older: str | None, newer: str | None) -> tuple[str, ...]:
    assert older is not None
    assert newer is not None
    between = Revision("the newest record", older), Revision("HEAD", newer)
    return repository.commits_between(*between)
