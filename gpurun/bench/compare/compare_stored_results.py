"""Stored results compared with stored records, without a launch.

One machine measures (`gpurun bench --json FILE`), and another one, which needs no GPU, judges. The
judgement is that of `--from-history`, and as weak: a drift of the machine between the runs is not
cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.compare.compare_commits import CompareRequest
from gpurun.bench.compare.compare_with_history import HistoryComparison
from gpurun.bench.compare.comparison_document import Compared
from gpurun.bench.history.branch import BASELINES, branch_up_to
from gpurun.bench.history.past_records import no_baseline, usable
from gpurun.bench.history.prediction_interval import LEAST_RUNS
from gpurun.bench.record_of_launches import Version, keep
from gpurun.bench.store.record_files import read_documents
from gpurun.bench.trees.git import Repository, open_repository, short
from gpurun.errors import ExitCode, GpurunError
from gpurun.formatting.number_text import count
from gpurun.records.bench.benchmark import BenchmarkRecord, utc_moment
from gpurun.records.bench.comparison import Comparison
from gpurun.trials.signal_guard import SignalGuard

if TYPE_CHECKING:
    from gpurun.bench.store.benchmark_store import BenchmarkStore

ELSEWHERE = "give its past records: --baseline FOLDER, such as .gpurun/benchmarks"
UNDECIDED = (
    "one run cannot separate that from the noise between runs: launch both sides "
    "one after the other (gpurun bench --compare REF)"
)


def read_results(path: Path) -> list[BenchmarkRecord]:
    """The newest record of each benchmark in a file; `GpurunError` where there is none."""
    newest = {record.benchmark: record for record in _records(path)}
    if not newest:
        raise GpurunError(
            f"{path} holds no record of a benchmark", "write it with gpurun bench --json FILE"
        )
    return list(newest.values())


def read_baseline(path: Path) -> list[BenchmarkRecord]:
    """All records in a file or folder; a file that cannot be read is no usable baseline."""
    try:
        return _records(path)
    except GpurunError as error:
        raise GpurunError(error.what, error.todo, ExitCode.NO_BASELINE) from None


def _records(path: Path) -> list[BenchmarkRecord]:
    """The records of a file, or of all files of a folder, oldest first."""
    try:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        what = f"{path} cannot be read: {error.strerror or error}"
        raise GpurunError(what, "name a file of gpurun bench --json, or a folder of them") from None
    documents = (one for file in files for one in read_documents(file))
    found = (one for one in documents if isinstance(one, BenchmarkRecord))
    return sorted(found, key=lambda record: (utc_moment(record.time), record.id))


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
    started = time.monotonic()
    version = Version(current.commit, current.branch, current.dirty)
    course = HistoryComparison(benchmark, asked, store, None, undecided=UNDECIDED)
    course.compared = Compared(Version(), version, (None, current))

    def judge() -> None:
        if baseline is not None:
            past, repository = _in_file(baseline, current), None
        else:
            keep(current, asked.keep, asked.tell)
            past, repository = _in_store(benchmark, current, store)
            parent = repository.first_parent(current.commit or "")
            course.compared = Compared(Version(parent, None, False), version, (None, current))
        course.judge_against(past, current, repository)

    return course.document(started, judge, interruption)


def _in_file(path: Path, current: BenchmarkRecord) -> list[BenchmarkRecord]:
    """The records of the same benchmark, in the order of time."""
    own = [r for r in read_baseline(path) if r.benchmark == current.benchmark]
    past = [r for r in own if r.id != current.id and not r.dirty and r.error is None]
    return _enough(past, f"{path} has {count(len(past), 'usable record')} of {current.benchmark}")


def _in_store(
    benchmark: Benchmark, current: BenchmarkRecord, store: BenchmarkStore
) -> tuple[list[BenchmarkRecord], Repository]:
    """The records of the commits before its own, along first parents, and the repository that knows
    these."""
    if current.commit is None:
        raise GpurunError("the results name no commit", ELSEWHERE, ExitCode.NO_BASELINE)
    try:
        repository = open_repository(Path.cwd())
        repository.resolve(current.commit)
        parent = repository.first_parent(current.commit)
        records = store.query(benchmark.name, purposes=BASELINES)
    except GpurunError as error:
        raise GpurunError(
            f"the commits before {short(current.commit)} are not known here: {error.what}",
            f"fetch the whole history (fetch-depth: 0), or {ELSEWHERE}",
            ExitCode.NO_BASELINE,
        ) from None
    if parent is None:
        raise GpurunError(
            f"{short(current.commit)} is the first commit: there is nothing before it",
            "judge from the second commit on",
            ExitCode.NO_BASELINE,
        )
    past = usable(records, branch_up_to(repository, parent, None))
    told = f"{benchmark.name} has {count(len(past), 'record')} of commits up to {short(parent)}"
    return _enough(past, told), repository


def _enough(past: Sequence[BenchmarkRecord], told: str) -> list[BenchmarkRecord]:
    if len(past) < LEAST_RUNS:
        raise no_baseline(f"{told}, and {LEAST_RUNS} are needed")
    return list(past)
