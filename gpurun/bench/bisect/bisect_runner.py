"""A search for a culprit, from GOOD..BAD to the document: pairs are launched until it is known.

The document is the state, too: `<records>/bisections/<good>-<bad>-<key>.json` is replaced whole
after each pair and each skipped commit, so the same command continues the search after any end. The
key stands for the repository and for everything that a launch depends on.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpurun.bench.benchmark_launcher import Launch, Launcher, Tell, isolation
from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.bisect.commit_launches import CommitLauncher, Unmeasurable
from gpurun.bench.bisect.culprit_search import Measure, SearchPlan, answered, next_action
from gpurun.bench.record_of_launches import Version, keep, record_of
from gpurun.bench.trees.git import (
    FULL_HISTORY,
    Repository,
    incomparable,
    open_repository,
    short,
)
from gpurun.bench.trees.prepared_sides import Sides, prepared_sides
from gpurun.bench.unfinished import Unfinished, ended_by
from gpurun.errors import GpurunError
from gpurun.formatting.number_text import count, signed_percent
from gpurun.measure.fingerprint import fingerprint
from gpurun.pairs.engine import NotLive
from gpurun.pairs.estimate import is_loose
from gpurun.records.bench.benchmark import BenchmarkPurpose, BenchmarkRecord
from gpurun.records.bench.bisection import BisectedCommit, BisectedPair, BisectionReport
from gpurun.records.bench.metrics import Metric
from gpurun.records.codec import from_json, to_json
from gpurun.records.script_arguments import masked
from gpurun.rundir import kept_run, own_folder, read_json, write_json
from gpurun.trials.signal_guard import SignalGuard

FOLDER = "bisections"
FIELDS = "%H%x00%P%x00%an%x00%aI%x00%s"


@dataclass(frozen=True)
class BisectRequest:
    """A request for a search. `good` and `bad` name commits; `deadline`: of `time.monotonic`, when
    no further pair begins.

    `fresh` forgets an earlier search. `keep` enters a record into the store; `tell` hears what
    happens, a line each.
    """

    good: str
    bad: str
    home: Path
    max_pairs: int | None
    deadline: float
    in_place: bool
    fresh: bool
    keep: Callable[[BenchmarkRecord], None]
    tell: Tell


def bisect(
    benchmark: Benchmark, asked: BisectRequest, interruption: SignalGuard
) -> BisectionReport:
    """Search, keep the records of all launches, and say what was found; it ends as `compare_sides`
    does, and the next call continues after the last pair."""
    runner, unfinished = BisectRunner(benchmark, asked, interruption), None
    try:
        runner.search(open_repository(benchmark.folder))
    except BaseException as error:
        done = "interrupted; the same command continues after the last pair"
        todo = "run it again to continue"
        unfinished = ended_by(error, benchmark.name, interruption.exit_code, done, todo)
    finally:
        interruption.hold()
    return runner.document(unfinished)


def not_searched(
    benchmark: Benchmark, asked: BisectRequest, unfinished: Unfinished
) -> BisectionReport:
    """The document of a benchmark of which nothing is known but why."""
    return BisectRunner(benchmark, asked, SignalGuard()).document(unfinished)


@dataclass
class BisectRunner:
    """One search. `found`: its document so far."""

    benchmark: Benchmark
    asked: BisectRequest
    interruption: SignalGuard
    found: BisectionReport = field(init=False)
    plan: SearchPlan = field(init=False)

    def __post_init__(self) -> None:
        """Half of what the gate lets pass counts as a drop, as it does with its usual threshold."""
        benchmark, plan = self.benchmark, SearchPlan()
        shares = [benchmark.thresholds.get(m) for m in (Metric.THROUGHPUT, Metric.STEP_TIME)]
        smallest = next((share / 2 for share in shares if share), plan.smallest)
        most = self.asked.max_pairs or plan.max_pairs
        self.plan = replace(plan, smallest=smallest, max_pairs=most)
        command = masked((benchmark.script, *benchmark.args))
        self.found = BisectionReport(benchmark.name, command, smallest)

    def search(self, repository: Repository) -> None:
        """Search the range; `GpurunError` where it cannot be searched or its benchmark fails."""
        good, *commits = commit_range(repository, self.asked.good, self.asked.bad)
        self.found = replace(self.found, good=good, commits=tuple(commits))
        ends = f"{short(good.commit)}..{short(commits[-1].commit)}"
        self.asked.tell(f"{ends}: {count(len(commits), 'commit')} along first parents")
        path = self.state(repository)
        if next_action(self.found, self.plan).more is not None:
            with kept_run(self.asked.home) as folder:
                self._launch(repository, path, folder)

    def document(self, unfinished: Unfinished | None) -> BisectionReport:
        """The document; `unfinished` where something else than the search ended it."""
        found = answered(self.found, self.plan)
        return found if unfinished is None else unfinished.ending(replace(found, culprit=None))

    def state(self, repository: Repository) -> Path:
        """The file of this search; `found` gets what it holds."""
        here = fingerprint((), Path.cwd(), None)
        line = [one.commit for one in self.found.line]
        depends = (repository.common, line, self.benchmark, here["gpus"] or here["cpu"])
        key = hashlib.sha256(repr(depends).encode()).hexdigest()[:12]
        name = f"{short(line[0])}-{short(line[-1])}-{key}.json"
        path = own_folder(self.asked.home, FOLDER) / name
        if path.exists() and not self.asked.fresh:
            try:
                found = from_json(BisectionReport, read_json(path))
            except (ValueError, OverflowError, RecursionError) as error:
                what = f"{path} cannot be read: {error}"
                raise GpurunError(what, "--fresh starts again") from None
            self.found = found
            pairs = count(len(found.pairs), "pair")
            self.asked.tell(f"continuing after {pairs} (--fresh starts again)")
        return path

    def _launch(self, repository: Repository, path: Path, folder: Path) -> None:
        """Everything that is launched; at its end nothing may cut the cleaning short."""
        asked, benchmark = self.asked, self.benchmark
        mode = isolation(benchmark.folder, asked.in_place, asked.tell)

        def make(commit: str) -> AbstractContextManager[Sides]:
            one = {short(commit): commit}
            return prepared_sides(repository, one, asked.home, benchmark, folder, asked.tell)

        good = self.found.line[0].commit
        launcher = Launcher(benchmark, folder, mode, asked.tell)
        measuring = CommitLauncher(
            good, launcher, make, self.interruption, asked.tell, asked.deadline
        )
        try:
            self.take_pairs(measuring, path)
        finally:
            self.interruption.hold()
            measuring.close()
            launcher.close()
            notes = (*self.found.notes, *measuring.remember.lines)
            self.found = replace(self.found, notes=tuple(dict.fromkeys(notes)))

    def take_pairs(self, measuring: CommitLauncher, path: Path) -> None:
        """Launch until it is decided or time ends; `GpurunError` where the benchmark fails."""
        began, suspects = time.monotonic() - self.found.seconds, len(self.found.commits)
        while (wanted := (standing := next_action(self.found, self.plan)).more) is not None:
            if len(standing.suspects) != suspects:
                suspects = len(standing.suspects)
                self.asked.tell(f"{count(suspects, 'suspect')} left")
            if time.monotonic() + measuring.estimate(wanted) > self.asked.deadline:
                return
            try:
                self.found, told = self._pair(wanted, measuring)
            except Unmeasurable as error:
                self.found, told = self._skipped(error, measuring)
            except NotLive as failed:
                self.asked.tell(f"the budget ended after a pair that failed: {failed}")
                return
            self.interruption.hold()
            self.found = replace(self.found, seconds=time.monotonic() - began)
            write_json(path, to_json(self.found))
            self.asked.tell(told)
            self.interruption.release()

    def _pair(self, wanted: Measure, measuring: CommitLauncher) -> tuple[BisectionReport, str]:
        """The document with one more pair, and a line that tells it."""
        taken = measuring.pair(wanted, len(self.found.pairs) + 1)
        before, now = (one.steps_per_second or math.nan for one in (taken.first, taken.second))
        if taken.ratio is not None:
            now = before * math.exp(-taken.ratio.log)
        self.interruption.hold()  # records come first, so that a kill loses none
        records = (self._kept(wanted.against, taken.first), self._kept(wanted.commit, taken.second))
        error = None if taken.ratio is None else taken.ratio.error
        names = (wanted.commit, wanted.against)
        loose = is_loose(taken.first.result, taken.second.result)
        pair = BisectedPair(*names, wanted.against_first, now, before, error, records, loose)
        pairs = (*self.found.pairs, pair)
        change = signed_percent(now / before - 1)
        told = f"{short(pair.against)} {before:.4g}, {short(pair.commit)} {now:.4g} steps/s"
        return replace(self.found, pairs=pairs), f"pair {len(pairs)}: {told} ({change})"

    def _skipped(
        self, failed: Unmeasurable, measuring: CommitLauncher
    ) -> tuple[BisectionReport, str]:
        """Leave out a commit that cannot be measured; `GpurunError` for an end of the range."""
        commit, error, line = failed.commit, failed.error, self.found.line
        self.interruption.hold()
        measuring.drop(commit)
        if failed.launch is not None:
            self._kept(commit, failed.launch)
        for name, end in (("GOOD", line[0]), ("BAD", line[-1])):
            if commit == end.commit:
                what = f"{name} ({short(commit)}) cannot be measured: {error.what}"
                todo = error.todo or "name an end of the range whose benchmark runs"
                raise GpurunError(what, todo, error.code)
        skipped = (replace(c, skipped=error.what) if c.commit == commit else c for c in line[1:])
        told = f"{short(commit)} is skipped: {error.what}"
        return replace(self.found, commits=tuple(skipped)), told

    def _kept(self, commit: str, launch: Launch) -> str | None:
        version = Version(commit, None, False)
        record = record_of(self.benchmark, [launch], version, BenchmarkPurpose.BISECT)
        return record.id if keep(record, self.asked.keep, self.asked.tell) else None


def commit_range(repository: Repository, good: str, bad: str) -> tuple[BisectedCommit, ...]:
    """The line from `good` to `bad`, names of commits; `GpurunError` (exit code 4) without one.

    GOOD comes first, and BAD last. Along first parents each commit holds all that came before it. A
    merged branch is one change there, named by its merge.
    """
    older, newer = (repository.resolve(name).commit for name in (good, bad))
    if older == newer:
        raise incomparable(
            f"{good} and {bad} are the same commit {short(older)}",
            "name an older one that is known to be faster first, as in v1.0..main",
        )
    if repository.merge_base(older, newer) != older:
        cure = "name one of its ancestors, as in A..B; or swap them"
        raise incomparable(f"{good} is not an ancestor of {bad}", cure)
    words = ("log", "--no-show-signature", "--encoding=UTF-8", f"--format={FIELDS}")
    after = ("--first-parent", "--topo-order", "--reverse", f"{older}..{newer}")
    listed = repository.call(*words, "--no-walk", older) + repository.call(*words, *after)
    line = tuple(map(_commit, listed.splitlines()))
    start = repository.first_parent(line[1].commit)
    if start != older:
        cure = f"start at their common ancestor: {short(start)}..{bad}" if start else FULL_HISTORY
        raise incomparable(f"{good} is not on the line of first parents of {bad}", cure)
    return line


def _commit(line: str) -> BisectedCommit:
    commit, parents, author, authored, subject = line.split("\0", 4)
    return BisectedCommit(commit, subject, author, authored, len(parents.split()) > 1)
