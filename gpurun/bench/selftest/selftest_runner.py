"""HEAD compared with itself three times: as it is, with one side slowed down, with the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.compare.compare_commits import CompareRequest, ComparisonPlan, compare_sides
from gpurun.bench.compare.comparison_document import SPEED, Compared
from gpurun.bench.record_of_launches import Version
from gpurun.bench.selftest.selftest_answers import AGAIN, PLANS, seconds_a_step, with_part
from gpurun.bench.trees.git import open_repository, short
from gpurun.bench.trees.prepared_sides import BASELINE, CURRENT, Sides, compared_sides
from gpurun.bench.unfinished import Unfinished, ended_by
from gpurun.errors import ExitCode, GpurunError
from gpurun.records.bench.benchmark import BenchmarkPurpose
from gpurun.records.bench.selftest import Selftest
from gpurun.records.script_arguments import masked
from gpurun.rundir import kept_run
from gpurun.trials.signal_guard import SignalGuard

FACTOR, MOST_THRESHOLD = 2.0, 0.4
"""The planted slowdown is twice the threshold; of larger thresholds it would leave no speed."""
LEFT_OUT = "uncommitted changes are left out: the selftest works on the commit"


def selftest(benchmark: Benchmark, asked: CompareRequest, interruption: SignalGuard) -> Selftest:
    """Try the gate, and say whether each of its answers is right. Failures, errors and signals are
    treated as by `compare_sides`."""
    found = _untried(benchmark, asked)
    try:
        for stage in _stages(found, benchmark, asked, interruption):
            found = stage
    except BaseException as error:
        done = f"interrupted after {len(found.parts)} of {len(PLANS)} comparisons"
        found = _ended(found, ended_by(error, benchmark.name, interruption.exit_code, done))
    finally:
        interruption.hold()
    return found


def not_tried(benchmark: Benchmark, asked: CompareRequest, by: Unfinished) -> Selftest:
    """The document of a benchmark of which nothing is known but why."""
    return _ended(_untried(benchmark, asked), by)


def _untried(benchmark: Benchmark, asked: CompareRequest) -> Selftest:
    command, code = masked((benchmark.script, *benchmark.args)), int(ExitCode.INCONCLUSIVE)
    return Selftest(benchmark.name, command, "inconclusive", code, asked.plan.looks[-1])


def _ended(found: Selftest, by: Unfinished) -> Selftest:
    found = replace(found, verdict=by.verdict, exit_code=by.exit_code)
    return replace(found, error=by.error, recommendation=by.todo or AGAIN)


def _stages(
    document: Selftest, benchmark: Benchmark, asked: CompareRequest, interruption: SignalGuard
) -> Iterator[Selftest]:
    """The growing document, up to a comparison that fails or measures nothing."""
    threshold, repository = _threshold(benchmark), open_repository(benchmark.folder)
    head, changes = repository.head(), repository.changes()
    notes = (LEFT_OUT,) if changes.dirty or changes.untracked_python else ()
    for line in (f"both sides are HEAD, {short(head)}, in worktrees of their own", *notes):
        asked.tell(line)
    document = replace(document, commit=head, dirty=changes.dirty, threshold=threshold, notes=notes)
    yield document
    loss, delay = FACTOR * threshold, 0.0
    planted = {None: 0.0, CURRENT: loss, BASELINE: loss / (loss - 1)}
    run = nullcontext(asked.home) if benchmark.setup is None else kept_run(asked.home)
    with (
        run as logs,
        compared_sides(repository, head, asked.home, benchmark, logs, head, asked.tell) as sides,
    ):
        for number, plan in enumerate(PLANS, 1):
            interruption.release()
            how = f" (the {plan.slowed} one sleeps {1000 * delay:.3g} ms a step)" if delay else ""
            asked.tell(f"{number} of {len(PLANS)}: {plan.said}{how}")
            prepare = partial(_plan, sides.slowed(plan.slowed, delay))
            found = compare_sides(benchmark, asked, interruption, prepare)
            document = with_part(document, plan, planted[plan.slowed], delay, found)
            yield document
            step = seconds_a_step(found.baseline.launches + found.current.launches)
            if step is None or found.error is not None:
                return
            delay = delay or step * loss / (1 - loss)


def _plan(sides: Sides) -> ComparisonPlan:
    head = Version(sides.current.commit, None, False)
    compared, ready = Compared(head, head), nullcontext(sides)
    return ComparisonPlan(compared, lambda _: ready, BenchmarkPurpose.SELFTEST)


def _threshold(benchmark: Benchmark) -> float:
    """The threshold of the gated speed; `GpurunError` if no delay can cost twice as much."""
    share = next((benchmark.thresholds[m] for m in SPEED if m in benchmark.thresholds), None)
    if share is None or share > MOST_THRESHOLD:
        what = f"the selftest needs a gated speed with a threshold up to {MOST_THRESHOLD:.0%}"
        raise GpurunError(what, "try --metrics throughput --threshold 5%")
    return share
