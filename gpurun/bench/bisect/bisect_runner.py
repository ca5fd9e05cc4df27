"""A search for a culprit, from GOOD..BAD to the document: pairs are launched until it is known.

The first launches of both ends set the terms for all launches: the number of steps, the unit of
throughput, and the work that counts as equal. A commit that cannot be measured is skipped; where
that is an end of the range, the search ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpurun.bench.bench_pairs import MeasuredPair
from gpurun.bench.benchmark_launcher import Launch, Launcher
from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.bisect.bisect_document import Findings, bisection_report
from gpurun.bench.bisect.bisect_state import (
    Confirm,
    Done,
    LaunchTerms,
    Measure,
    Pair,
    SearchPlan,
    SearchState,
    StateFile,
    fresh_state,
    state_file,
)
from gpurun.bench.bisect.commit_launches import CommitLauncher, TreePool, Unmeasurable
from gpurun.bench.bisect.commit_range import CommitRange, branch_of, commit_range
from gpurun.bench.bisect.culprit_search import next_action
from gpurun.bench.compare.pair_runner import Tell
from gpurun.bench.disturbed_pairs import MOST_AGAIN, disturbance
from gpurun.bench.record_of_launches import keep
from gpurun.bench.trees.git import Repository, open_repository, short
from gpurun.bench.trees.prepared_sides import Sides, single_side
from gpurun.bench.trees.worktrees import WORKTREES, remove_abandoned
from gpurun.bench.unfinished import Unfinished, ended_by
from gpurun.bench.workload import Work, figure, refuse_changed
from gpurun.errors import ExitCode, GpurunError
from gpurun.formatting.number_text import count
from gpurun.isolation.available_modes import require
from gpurun.measure.fingerprint import fingerprint
from gpurun.records.bench.benchmark import BenchmarkRecord
from gpurun.records.bench.bisection import BisectedPair, BisectionReport
from gpurun.records.bench.metrics import Metric
from gpurun.rundir import new_run, own_folder
from gpurun.trials.signal_guard import SignalGuard
from gpurun.trials.stop_rules import WHOLE, later_rule


@dataclass(frozen=True)
class BisectRequest:
    """A request for a search. `good` and `bad` name commits; `deadline`: of `time.monotonic`.

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
    """Search, keep the records of all launches, and say what was found.

    The document reports a benchmark that fails, a range that cannot be searched, a refusal of the
    system (a full disk) and an interruption. Other errors are raised. In any case the next call
    continues after the last pair. No signal interrupts any more afterwards, until
    `interruption.release`.
    """
    plan = _plan(benchmark, asked)
    findings, unfinished = Findings(), None
    try:
        repository = open_repository(benchmark.folder)
        findings.line = line = commit_range(repository, asked.good, asked.bad)
        remove_abandoned(own_folder(asked.home, WORKTREES))
        asked.tell(line.describe())
        with state_file(asked.home, repository, benchmark, line, asked.tell, asked.fresh) as file:
            state = file.state or fresh_state(line, plan)
            state = replace(state, search=replace(state.search, plan=plan))
            findings.state = state
            if not _is_over(state, asked.tell):
                _launch(repository, benchmark, asked, file, findings, interruption)
    except BaseException as error:
        done = "interrupted; the same command continues after the last pair"
        todo = "run it again to continue"
        unfinished = ended_by(error, benchmark.name, interruption.exit_code, done, todo)
    finally:
        interruption.hold()
    if findings.line is not None and findings.state is not None and findings.state.pairs:
        findings.done = so_far(findings.state)
        findings.branch = _branch(repository, findings.line, findings.done)
    return bisection_report(benchmark, findings, plan, unfinished)


def not_searched(
    benchmark: Benchmark, asked: BisectRequest, unfinished: Unfinished
) -> BisectionReport:
    """The document of a benchmark of which nothing is known but why."""
    return bisection_report(benchmark, Findings(), _plan(benchmark, asked), unfinished)


def _plan(benchmark: Benchmark, asked: BisectRequest) -> SearchPlan:
    """Half of what the gate lets pass counts as a drop, as it does with its usual threshold."""
    plan = SearchPlan()
    speed = benchmark.thresholds.get(Metric.THROUGHPUT) or benchmark.thresholds.get(
        Metric.STEP_TIME
    )
    return replace(
        plan,
        smallest=plan.smallest if speed is None else speed / 2,
        max_pairs=asked.max_pairs or plan.max_pairs,
    )


def _is_over(state: SearchState, tell: Tell) -> bool:
    """True if an earlier call has found the answer; tells where this one begins."""
    if not state.pairs and not state.skips:
        return False
    pairs = count(len(state.pairs), "pair")
    if isinstance(next_action(state.search), Done):
        tell(f"this search ended after {pairs}: nothing is launched (--fresh starts again)")
        return True
    tell(f"continuing after {pairs} (--fresh starts again)")
    return False


def _launch(
    repository: Repository,
    benchmark: Benchmark,
    asked: BisectRequest,
    file: StateFile,
    findings: Findings,
    interruption: SignalGuard,
) -> None:
    """Everything that is launched; at its end nothing may cut the cleaning short."""
    assert findings.line is not None
    assert findings.state is not None
    folder = new_run(asked.home)
    mode, imperfection = require(benchmark.folder, in_place=asked.in_place)
    if imperfection:
        asked.tell(imperfection)
    launcher = Launcher(benchmark, folder, mode, asked.tell)

    def tree(commit: str) -> AbstractContextManager[Sides]:
        return single_side(repository, commit, asked.home, benchmark, folder, asked.tell)

    pool = TreePool(tree, launcher.forget)
    measuring = CommitLauncher(benchmark, launcher, pool, interruption, asked.tell)
    searching = BisectRunner(
        findings.line, file, findings.state, measuring, launcher, asked.keep, asked.tell,
        interruption, asked.deadline,
    )  # fmt: skip
    try:
        searching.run()
    finally:
        interruption.hold()
        pool.close()
        launcher.close()
        findings.state, findings.ended = searching.state, searching.ended
        findings.notes = tuple(measuring.notes)


def _branch(repository: Repository, line: CommitRange, done: Done) -> str | None:
    """The range of the branch that the culprit merged, as people write it; None for others."""
    culprit = next((one for one in line.commits if one.commit == done.culprit), None)
    branch = None if culprit is None else branch_of(repository, culprit)
    return None if branch is None else f"{short(branch[0])}..{short(branch[1])}"


@dataclass
class BisectRunner:
    """One search. `deadline`: of `time.monotonic`, when no further pair begins.

    `keep` enters a record into the store. `ended`: why it ended before it was decided.
    """

    line: CommitRange
    file: StateFile
    state: SearchState
    measuring: CommitLauncher
    launcher: Launcher
    keep: Callable[[BenchmarkRecord], None]
    tell: Tell
    interruption: SignalGuard
    deadline: float = math.inf
    ended: str | None = field(init=False, default=None)
    _again: int = field(init=False, default=0)
    _suspected: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._clock = time.monotonic()
        self.measuring.terms = self.state.terms

    def run(self) -> None:
        """Launch until it is decided or time ends; `GpurunError` where the benchmark fails."""
        self._refuse_elsewhere()
        while not isinstance(action := next_action(self.state.search), Done):
            ahead = self.measuring.estimate((action.commit, action.against))
            if time.monotonic() + ahead > self.deadline:
                self.ended = "the budget ended"
                return
            try:
                terms = self.state.terms or self._agree_on_terms()
                self._announce(action)
                self._pair(action, terms)
            except Unmeasurable as error:
                self._skip(error)

    def _refuse_elsewhere(self) -> None:
        """Figures of different devices do not belong into one search."""
        terms, here = self.state.terms, devices_here()
        if terms is not None and terms.devices != here:
            raise GpurunError(
                f"this search began on {terms.devices}, and this machine has {here}",
                "continue there, or start again: --fresh",
            )

    def _agree_on_terms(self) -> LaunchTerms:
        """By first launches of both ends; `GpurunError` where their work differs."""
        good, bad = (self.measuring.first(end.commit) for end in (self.line.good, self.line.bad))
        self._refuse_unequal(good, bad)
        by_samples = all(launch.result.samples_per_second for launch in (good, bad))
        if not by_samples:
            self.tell("samples cannot be counted: throughput counts steps instead")
        rule = later_rule(self.launcher.benchmark.steps, (good.result, bad.result))
        terms = LaunchTerms(rule, by_samples, Work.of(good), devices_here())
        self._write(replace(self.state, terms=terms))
        return terms

    def _refuse_unequal(self, good: Launch, bad: Launch) -> None:
        at_bad, at_good = (f" at {short(end.commit)}" for end in (self.line.bad, self.line.good))
        refuse_changed(
            Work.of(bad).difference(Work.of(good), at_bad, at_good),
            "name the same value for both, as in args of [bench], or search on one side of the "
            "commit that changed it",
        )

    def _pair(self, action: Measure, terms: LaunchTerms) -> None:
        """One more pair, launched again where a recorded cause befell one half of it."""
        if action.against_first:
            taken = self.measuring.pair(action.against, action.commit, terms)
        else:
            taken = self.measuring.pair(action.commit, action.against, terms).turned
        against, of = taken.first, taken.second
        if terms.rule == WHOLE and terms.work.steps is None:
            # The first launches of the ends were stopped; the steps of whole ones show only now.
            self._refuse_unequal(against, of)
            terms = replace(terms, work=Work.of(against))
        cause = disturbance(against, of, live=taken.ratio is not None)
        if cause is not None and self._again < MOST_AGAIN:
            self._again += 1
            self.measuring.remember(f"a pair is launched again: {cause}")
            return
        if cause is not None:
            self.measuring.remember(f"a pair counts although {cause}: this happened too often")
        self._count(action, taken, terms)

    def _count(self, action: Measure, taken: MeasuredPair, terms: LaunchTerms) -> None:
        """Keep the pair: its records first, so that a kill in between loses nothing."""
        against, of = taken.first, taken.second
        before = _throughput(action.against, against, terms)
        now = _throughput(action.commit, of, terms)
        if taken.ratio is not None:
            now = before * math.exp(-taken.ratio.log)
        worse = Metric.THROUGHPUT.log_worse(before, now)
        search = self.state.search.with_pair(
            Pair(action.commit, action.against, worse, action.against_first)
        )
        self.interruption.hold()
        pair = BisectedPair(
            commit=action.commit,
            against=action.against,
            against_first=action.against_first,
            throughput_of_commit=now,
            throughput_of_against=before,
            slowdown=Metric.THROUGHPUT.slowdown(worse),
            records=(self._kept(action.against, against), self._kept(action.commit, of)),
        )
        pairs = (*self.state.pairs, pair)
        self._write(replace(self.state, search=search, pairs=pairs, terms=terms))
        self.tell(self._shown(pair, terms))
        self.interruption.release()

    def _skip(self, error: Unmeasurable) -> None:
        self.interruption.hold()
        commit = error.commit
        self.measuring.drop(commit)
        if error.launch is not None:
            self._kept(commit, error.launch)
        for name, end in (("GOOD", self.line.good), ("BAD", self.line.bad)):
            if commit == end.commit:
                raise GpurunError(
                    f"{name} ({short(commit)}) cannot be measured: {error.reason}",
                    error.todo or "name an end of the range whose benchmark runs",
                    ExitCode.BENCHMARK_FAILED,
                )
        self._write(self.state.without(commit, error.reason))
        self.tell(f"{short(commit)} is skipped: {error.reason}")
        self.interruption.release()

    def _kept(self, commit: str, launch: Launch) -> str | None:
        record = self.measuring.record(commit, launch)
        return record.id if keep(record, self.keep, self.tell) else None

    def _write(self, state: SearchState) -> None:
        now = time.monotonic()
        self.state = replace(state, seconds=state.seconds + now - self._clock)
        self._clock = now
        self.measuring.terms = state.terms
        self.file.write(self.state)

    def _announce(self, action: Measure) -> None:
        if isinstance(action, Confirm) and action.commit != self._suspected:
            self._suspected = action.commit
            one = next(c for c in self.line.commits if c.commit == action.commit)
            self.tell(
                f"{short(one.commit)} ({one.subject}) is the likeliest "
                f"({100 * action.probability:.0f} %): gpurun compares it with its parent"
            )

    def _shown(self, pair: BisectedPair, terms: LaunchTerms) -> str:
        unit = "samples/s" if terms.by_samples else "steps/s"
        change = (pair.throughput_of_commit / pair.throughput_of_against - 1) * 100
        known = so_far(self.state)
        top = max(known.suspects, key=lambda one: one.probability, default=None)
        guess = f"a drop {100 * (1 - known.no_drop):.0f} %"
        if top is not None:
            guess += f", likeliest {short(top.commits[-1])} {100 * top.probability:.0f} %"
        return (
            f"pair {len(self.state.pairs)}: {short(pair.against)} "
            f"{pair.throughput_of_against:.4g}, {short(pair.commit)} "
            f"{pair.throughput_of_commit:.4g} {unit} ({change:+.1f} %); {guess}"
        )


def so_far(state: SearchState) -> Done:
    """The answer so far, as if no more pairs were allowed."""
    search = state.search
    plan = replace(search.plan, max_pairs=len(search.pairs))
    done = next_action(replace(search, plan=plan))
    assert isinstance(done, Done)
    return done


def devices_here() -> str:
    """The GPUs of this machine by name, the processor where there is none."""
    here = fingerprint((), Path.cwd(), None)
    return ", ".join(dict.fromkeys(here["gpus"])) or here["cpu"] or "an unknown device"


def _throughput(commit: str, launch: Launch, terms: LaunchTerms) -> float:
    value = figure(Metric.THROUGHPUT, launch.result, terms.by_samples)
    if not value:
        raise Unmeasurable(commit, "its samples cannot be counted; other commits' samples can")
    return float(value)
