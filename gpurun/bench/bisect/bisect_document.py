"""The document of a search, from its state and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.bisect.bisect_state import Done, Outcome, SearchPlan, SearchState
from gpurun.bench.bisect.commit_range import CommitRange
from gpurun.bench.trees.git import short
from gpurun.bench.unfinished import Unfinished
from gpurun.errors import ExitCode
from gpurun.records.bench.bisection import BisectionReport
from gpurun.records.script_arguments import masked

EXIT_CODES = {
    "found": ExitCode.OK,
    "narrowed": ExitCode.INCONCLUSIVE,
    "no_drop": ExitCode.INCONCLUSIVE,
    "inconclusive": ExitCode.INCONCLUSIVE,
}
WORST_FIRST = ("interrupted", "failed", "found", "narrowed", "inconclusive", "no_drop")


@dataclass
class Findings:
    """Where a search stands; whatever ends it, it stands here.

    `ended`: why it ended undecided. `branch`: the range of the branch that the culprit merged, as
    people write it. None: not known.
    """

    line: CommitRange | None = None
    state: SearchState | None = None
    done: Done | None = None
    ended: str | None = None
    notes: tuple[str, ...] = ()
    branch: str | None = None


def bisection_report(
    benchmark: Benchmark, found: Findings, plan: SearchPlan, unfinished: Unfinished | None = None
) -> BisectionReport:
    """The document; `unfinished` where something else than the search ended it."""
    line, state, done = found.line, found.state, found.done
    verdict = _verdict(done) if unfinished is None else unfinished.verdict
    skips = {} if state is None else state.skips
    commits = () if line is None else line.commits
    return BisectionReport(
        benchmark=benchmark.name,
        command=masked((benchmark.script, *benchmark.args)),
        verdict=verdict,
        exit_code=int(EXIT_CODES[verdict] if unfinished is None else unfinished.exit_code),
        good=None if line is None else line.good,
        bad=None if line is None else line.bad,
        commits=tuple(replace(one, skipped=skips.get(one.commit)) for one in commits),
        culprit=done.culprit if done is not None and verdict == "found" else None,
        suspects=() if done is None else done.suspects,
        no_drop_probability=None if done is None or not done.pairs else done.no_drop,
        slowdown=None if done is None else done.slowdown,
        slowdown_confidence_interval=None if done is None else done.slowdown_interval,
        range_slowdown=None if done is None else done.bad_slowdown,
        second_drop=None if done is None else done.another,
        smallest_slowdown=plan.smallest,
        launch_noise=None if done is None else done.noise,
        pairs=() if state is None else state.pairs,
        recommendation=_recommendation(verdict, found, unfinished),
        seconds=0.0 if state is None else state.seconds,
        notes=found.notes,
        error=None if unfinished is None else unfinished.error,
    )


def worst_with_others(documents: Sequence[BisectionReport]) -> BisectionReport:
    """Several benchmarks as one document: that of the worst, which holds the others."""
    worst = min(documents, key=lambda one: WORST_FIRST.index(one.verdict))
    return replace(worst, others=tuple(one for one in documents if one is not worst))


def _verdict(done: Done | None) -> str:
    if done is None or done.outcome is Outcome.INCONCLUSIVE:
        return "inconclusive"
    if done.outcome is Outcome.NOT_REPRODUCED:
        return "no_drop"
    return "found" if done.culprit is not None else "narrowed"


def _recommendation(verdict: str, found: Findings, unfinished: Unfinished | None) -> str:
    if unfinished is not None:
        return unfinished.todo or "run it again"
    done = found.done
    if verdict == "found" and done is not None and done.culprit is not None:
        if found.branch is not None:
            return f"it is a merge; gpurun bench bisect {found.branch} searches the merged branch"
        return f"see git show {short(done.culprit)}"
    if verdict == "narrowed":
        return "make one of the skipped commits run, to separate the others"
    if verdict == "no_drop":
        return "look for other changes: data, driver, packages, the machine"
    if found.ended is not None:
        return f"{found.ended}: the same command with more --budget continues from here"
    return (
        "the same command with more --max-pairs continues from here; a quieter machine or more "
        "steps (--steps) need fewer"
    )
