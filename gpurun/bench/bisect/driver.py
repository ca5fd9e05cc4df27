"""One benchmark searched: from GOOD..BAD to the document, whatever ends it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.bisect.bisection import Done, SearchPlan
from gpurun.bench.bisect.document import Findings, bisection_report
from gpurun.bench.bisect.line import Line, branch_of, line_between
from gpurun.bench.bisect.measuring import Measuring
from gpurun.bench.bisect.pool import TreePool
from gpurun.bench.bisect.search import next_action
from gpurun.bench.bisect.searching import Searching, so_far
from gpurun.bench.bisect.state import SearchState, StateFile, fresh_state, state_file
from gpurun.bench.compare.comparison import preparation_of
from gpurun.bench.compare.pairs import Tell
from gpurun.bench.ending import ANSWERS, Ending, failure
from gpurun.bench.launches import Launcher
from gpurun.bench.trees.git import Repository, open_repository, short
from gpurun.bench.trees.sides import Sides, single_side
from gpurun.bench.trees.worktree import SIDES, remove_abandoned
from gpurun.errors import GpurunError
from gpurun.isolation.api import require
from gpurun.records.benchmark import BenchmarkRecord
from gpurun.records.bisection import BisectionReport
from gpurun.records.metrics import Metric
from gpurun.rundir import new_run, own_folder
from gpurun.trials.interruption import Interruption


@dataclass(frozen=True)
class Search:
    """What was asked for. `good` and `bad` name commits; `deadline`: of `time.monotonic`.

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


def bisect(benchmark: Benchmark, asked: Search, interruption: Interruption) -> BisectionReport:
    """Search, keep the records of all launches, and say what was found.

    A benchmark that fails, a range that cannot be searched, what the system refuses (a full disk)
    and an interruption are told by the document; other errors are raised, and the next call goes on
    from the last pair in any case.
    No signal interrupts any more afterwards, until `interruption.release`.
    """
    plan = _plan(benchmark, asked)
    findings, ending = Findings(), None
    try:
        repository = open_repository(benchmark.folder)
        findings.line = line = line_between(repository, asked.good, asked.bad)
        remove_abandoned(own_folder(asked.home, SIDES))
        asked.tell(line.describe())
        with state_file(asked.home, repository, benchmark, line, asked.tell, asked.fresh) as file:
            state = file.state or fresh_state(line, plan)
            state = replace(state, search=replace(state.search, plan=plan))
            findings.state = state
            if not _is_over(state, asked.tell):
                _launch(repository, benchmark, asked, file, findings, interruption)
    except KeyboardInterrupt:
        done = "interrupted; the same command goes on from the last pair"
        ending = Ending("interrupted", interruption.exit_code, done, "run it again to go on")
    except (GpurunError, OSError) as error:
        if isinstance(error, GpurunError) and error.code not in ANSWERS:
            raise
        ending = failure(error, benchmark.name)
    finally:
        interruption.hold()
    if findings.line is not None and findings.state is not None and findings.state.pairs:
        findings.done = so_far(findings.state)
        findings.branch = _branch(repository, findings.line, findings.done)
    return bisection_report(benchmark, findings, plan, ending)


def not_searched(benchmark: Benchmark, asked: Search, ending: Ending) -> BisectionReport:
    """The document of a benchmark of which nothing is known but why."""
    return bisection_report(benchmark, Findings(), _plan(benchmark, asked), ending)


def _plan(benchmark: Benchmark, asked: Search) -> SearchPlan:
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
    """Whether an earlier call has found the answer; says where this one begins."""
    if not state.pairs and not state.skips:
        return False
    count = f"{len(state.pairs)} pair{'' if len(state.pairs) == 1 else 's'}"
    if isinstance(next_action(state.search), Done):
        tell(f"this search ended after {count}: nothing is launched (--fresh begins anew)")
        return True
    tell(f"going on after {count} (--fresh begins anew)")
    return False


def _launch(
    repository: Repository,
    benchmark: Benchmark,
    asked: Search,
    file: StateFile,
    findings: Findings,
    interruption: Interruption,
) -> None:
    """Everything that is launched; at its end nothing may cut the cleaning short."""
    assert findings.line is not None
    assert findings.state is not None
    folder = new_run(asked.home)
    mode, imperfection = require(benchmark.folder, in_place=asked.in_place)
    if imperfection:
        asked.tell(imperfection)
    launcher = Launcher(benchmark, folder, mode, asked.tell)
    preparation = preparation_of(benchmark)

    def tree(commit: str) -> AbstractContextManager[Sides]:
        return single_side(repository, commit, asked.home, preparation, folder, asked.tell)

    pool = TreePool(tree, launcher.forget)
    measuring = Measuring(benchmark, launcher, pool, interruption, asked.tell)
    searching = Searching(
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


def _branch(repository: Repository, line: Line, done: Done) -> str | None:
    """The range of the branch that the culprit merged, as people write it; None for others."""
    culprit = next((one for one in line.commits if one.commit == done.culprit), None)
    branch = None if culprit is None else branch_of(repository, culprit)
    return None if branch is None else f"{short(branch[0])}..{short(branch[1])}"
