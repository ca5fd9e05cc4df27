"""HEAD compared with itself three times: as it is, and slowed down in two ways on purpose."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.compare.compare_commits import (
    CompareRequest,
    ComparisonPlan,
    compare_sides,
)
from gpurun.bench.compare.comparison_document import SPEED, Compared
from gpurun.bench.compare.pair_runner import Findings
from gpurun.bench.record_of_launches import Version
from gpurun.bench.selftest.planted_module import plant_in_tree
from gpurun.bench.selftest.selftest_answers import (
    EXIT_CODES,
    FACTOR,
    MODULE,
    MOST_THRESHOLD,
    RUNTIME,
    UNCHANGED,
    Plan,
    delay_for,
    judged,
    seconds_a_step,
    verdict_of,
)
from gpurun.bench.trees.git import Repository, open_repository, short
from gpurun.bench.trees.prepared_sides import BASELINE, CURRENT, Sides, compared_sides, set_up
from gpurun.bench.unfinished import Unfinished, ended_by
from gpurun.errors import GpurunError
from gpurun.records.bench.benchmark import BenchmarkPurpose
from gpurun.records.bench.selftest import Selftest, SelftestPart
from gpurun.records.script_arguments import masked
from gpurun.rundir import new_run
from gpurun.trials.signal_guard import SignalGuard

WORST_FIRST = ("interrupted", "wrong", "failed", "inconclusive", "pass")
TRUSTED = "nothing to do: the gate can fail, and does so for the right reason"
UNTRUSTED = "do not trust the gate with this benchmark here until that is fixed; then run it again"


@dataclass
class _Progress:
    """The findings so far; they stay here, whatever ends the selftest."""

    started: float = field(default_factory=time.monotonic)
    threshold: float | None = None
    commit: str | None = None
    dirty: bool | None = None
    parts: list[SelftestPart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def selftest(benchmark: Benchmark, asked: CompareRequest, interruption: SignalGuard) -> Selftest:
    """Try the gate, and say whether each of its answers is right.

    The document reports a benchmark that fails, a refusal of the system (a full disk) and an
    interruption. Other errors are raised. No signal interrupts any more afterwards, until
    `interruption.release`.
    """
    progress = _Progress()
    unfinished: Unfinished | None = None
    try:
        progress.threshold = _threshold(benchmark)
        _carry_through(benchmark, FACTOR * progress.threshold, asked, interruption, progress)
        unfinished = _ended(progress.parts)
    except BaseException as error:
        done = f"interrupted in its comparison {len(progress.parts) + 1} of 3"
        code = interruption.exit_code
        unfinished = ended_by(error, benchmark.name, code, done, "run it again")
    finally:
        interruption.hold()
    return _document(benchmark, asked, progress, unfinished)


def not_tried(benchmark: Benchmark, asked: CompareRequest, unfinished: Unfinished) -> Selftest:
    """The document of a benchmark of which nothing is known but why."""
    return _document(benchmark, asked, _Progress(), unfinished)


def _document(
    benchmark: Benchmark, asked: CompareRequest, progress: _Progress, unfinished: Unfinished | None
) -> Selftest:
    """`unfinished`: None where all three comparisons came to a verdict."""
    verdict = verdict_of(progress.parts) if unfinished is None else unfinished.verdict
    undecided = [p.comparison.recommendation for p in progress.parts if p.right is None]
    todo = {"pass": TRUSTED, "wrong": UNTRUSTED}.get(verdict, (undecided or [""])[0])
    return Selftest(
        benchmark=benchmark.name,
        command=masked((benchmark.script, *benchmark.args)),
        verdict=verdict,
        exit_code=int(EXIT_CODES[verdict]) if unfinished is None else unfinished.exit_code,
        commit=progress.commit,
        dirty=progress.dirty,
        threshold=progress.threshold,
        max_pairs=asked.plan.looks[-1],
        parts=tuple(progress.parts),
        recommendation=todo if unfinished is None else unfinished.todo or "run it again",
        seconds=time.monotonic() - progress.started,
        notes=tuple(progress.notes),
        error=None if unfinished is None else unfinished.error,
    )


def worst_with_others(documents: list[Selftest]) -> Selftest:
    """Several benchmarks as one document: that of the worst, which holds the others."""
    worst = min(documents, key=lambda one: WORST_FIRST.index(one.verdict))
    return replace(worst, others=tuple(one for one in documents if one is not worst))


def _threshold(benchmark: Benchmark) -> float:
    """The threshold of the gated speed, because a delay costs speed; `GpurunError` if no delay can
    be planted."""
    for metric in SPEED:
        share = benchmark.thresholds.get(metric)
        if share is not None and share <= MOST_THRESHOLD:
            return share
        if share is not None:
            raise GpurunError(
                f"a slow-down of twice the threshold of {share:.0%} leaves too little to measure",
                f"the selftest takes thresholds up to {MOST_THRESHOLD:.0%}",
            )
    raise GpurunError(
        f"the benchmark {benchmark.name} gates no speed, so the selftest cannot plant a slowdown",
        "add throughput to its metrics, or --metrics throughput",
    )


def _ended(parts: list[SelftestPart]) -> Unfinished | None:
    """The end of the last comparison, if it came before its verdict."""
    last = parts[-1].comparison
    if last.verdict not in ("failed", "interrupted"):
        return None
    return Unfinished(last.verdict, last.exit_code, last.error or "", last.recommendation)


# -- the three comparisons -------------------------------------------------------------------------


def _carry_through(
    benchmark: Benchmark,
    slowdown: float,
    asked: CompareRequest,
    interruption: SignalGuard,
    progress: _Progress,
) -> None:
    repository = open_repository(benchmark.folder)
    head = progress.commit = repository.head()
    _look_at_changes(repository, progress, asked)
    logs = asked.home if benchmark.setup is None else new_run(asked.home)  # no empty run folder
    with compared_sides(
        repository, head, asked.home, benchmark, logs, current=head, tell=asked.tell
    ) as sides:
        try:
            _compare_thrice(benchmark, slowdown, sides, asked, interruption, progress)
        finally:
            interruption.hold()  # nothing may cut the removal of the worktrees short


def _look_at_changes(repository: Repository, progress: _Progress, asked: CompareRequest) -> None:
    changes = repository.changes()
    progress.dirty = changes.dirty
    asked.tell(f"both sides are HEAD, {short(progress.commit or '')}, in worktrees of their own")
    if changes.dirty or changes.untracked_python:
        note = "uncommitted changes are left out: the selftest works on the commit"
        progress.notes.append(note)
        asked.tell(note)


def _compare_thrice(
    benchmark: Benchmark,
    slowdown: float,
    sides: Sides,
    asked: CompareRequest,
    interruption: SignalGuard,
    progress: _Progress,
) -> None:
    """Each comparison of its own, as long as the one before came to an end."""

    def compare(number: int, plan: Plan, tried: Sides, what: str) -> Findings | None:
        if number > 1:
            interruption.release()
        asked.tell(f"{number} of 3: {what}")
        findings = Findings()
        compared = _versions(sides, edited=plan.part == MODULE)
        comparison_plan = ComparisonPlan(
            compared, lambda _: nullcontext(tried), BenchmarkPurpose.SELFTEST
        )
        found = compare_sides(benchmark, asked, interruption, lambda: comparison_plan, findings)
        launches = (findings.launches(BASELINE), findings.launches(CURRENT))
        progress.parts.append(judged(plan, slowdown, found, *launches))
        return None if found.verdict in ("failed", "interrupted") else findings

    first = compare(1, Plan(UNCHANGED), sides, "nothing differs")
    if first is None:
        return
    step = seconds_a_step(first.launches(BASELINE) + first.launches(CURRENT))
    if step is None:  # time ended before the first pair
        return
    delay = delay_for(slowdown, step)
    loss = f"{slowdown:.0%} less throughput, {1000 * delay:.3g} ms a step"
    slowed = replace(sides, current=replace(sides.current, planted_seconds=delay))
    plan = Plan(RUNTIME, delay, source=RUNTIME)
    if compare(2, plan, slowed, f"the current side is slowed down by gpurun ({loss})") is None:
        return
    file = _planted_file(benchmark, sides, first, delay)
    inside = str(file.relative_to(sides.current.tree.root.resolve()))
    if benchmark.setup is not None:
        interruption.release()
        set_up(sides.current, sides.users, benchmark, new_run(asked.home), asked.tell)
    plan = Plan(MODULE, delay, source=str(file), file=inside)
    compare(3, plan, sides, f"the current side is slowed down in its copy of {inside} ({loss})")


def _versions(sides: Sides, *, edited: bool) -> Compared:
    commit = sides.current.commit
    return Compared(Version(commit, None, False), Version(commit, None, edited))


def _planted_file(benchmark: Benchmark, sides: Sides, first: Findings, delay: float) -> Path:
    """The file of the current side's worktree in which the delay now stands."""
    current = sides.current
    script = (current.folder / benchmark.script).resolve()
    return plant_in_tree(current.tree, script, first.launches(CURRENT)[0].origins, delay)
