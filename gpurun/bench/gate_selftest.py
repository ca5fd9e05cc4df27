"""The gate tried on slow-downs that are known to be there: HEAD is compared with itself three
times, as it is, with one side slowed down, and with the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.compare.compare_sides import CompareRequest, ComparisonPlan, compare_sides
from gpurun.bench.compare.comparison_document import Compared
from gpurun.bench.compare.pair_runner import BY_TURNS
from gpurun.bench.record_of_launches import Version
from gpurun.bench.trees.git import open_repository, short
from gpurun.bench.trees.prepared_sides import BASELINE, CURRENT, Sides, prepared_sides
from gpurun.bench.unfinished import AGAIN, Unfinished, ended_by
from gpurun.errors import ExitCode, GpurunError
from gpurun.measure.optional_figures import mean
from gpurun.records.bench.benchmark import BenchmarkLaunch, BenchmarkPurpose
from gpurun.records.bench.comparison import Comparison, Selftest, SelftestPart
from gpurun.records.bench.metrics import Metric
from gpurun.records.script_arguments import masked
from gpurun.rundir import kept_run
from gpurun.trials.signal_guard import SignalGuard

FACTOR, MOST_THRESHOLD = 2.0, 0.4
"""The planted slowdown is twice the threshold; of larger thresholds it would leave no speed."""
LEFT_OUT = "uncommitted changes are left out: the selftest works on the commit"
GREEN, RED, UNDECIDED = "green", "red", "undecided"
ANSWERS = {"pass": GREEN, "regression": RED, "inconclusive": UNDECIDED}
THERE = 0.9
"""Each launch of the slowed side must record this share of its delay."""
FELT = 0.5
"""If steps get longer by less than this share of the delay, the training waits for something."""
TRUSTED = "nothing to do: the gate can fail, and does so for the right reason"
UNTRUSTED = "do not trust the gate with this benchmark here until that is fixed"


@dataclass(frozen=True)
class SelftestPlan:
    """One comparison: `slowed` is the side that sleeps in each step, None for neither."""

    part: str
    slowed: str | None
    expected: str
    said: str


PLANS = (
    SelftestPlan("unchanged", None, GREEN, "nothing differs"),
    SelftestPlan("slower", CURRENT, RED, "the current side is slower"),
    SelftestPlan("faster", BASELINE, GREEN, "the current side is faster"),
)


def selftest(benchmark: Benchmark, asked: CompareRequest, interruption: SignalGuard) -> Selftest:
    """Try the gate, and say whether each of its answers is right. Failures, errors and signals are
    treated as by `compare_sides`."""
    found = _untried(benchmark, asked)
    try:
        for stage in _stages(found, benchmark, asked, interruption):
            found = stage
    except BaseException as error:
        done = f"interrupted after {len(found.parts)} of {len(PLANS)} comparisons"
        found = ended_by(error, benchmark.name, interruption.exit_code, done).ending(found)
    finally:
        interruption.hold()
    return found


def not_tried(benchmark: Benchmark, asked: CompareRequest, by: Unfinished) -> Selftest:
    """The document of a benchmark of which nothing is known but why."""
    return by.ending(_untried(benchmark, asked))


def _untried(benchmark: Benchmark, asked: CompareRequest) -> Selftest:
    command, code = masked((benchmark.script, *benchmark.args)), int(ExitCode.INCONCLUSIVE)
    return Selftest(benchmark.name, command, "inconclusive", code, asked.plan.looks[-1])


def _stages(
    document: Selftest, benchmark: Benchmark, asked: CompareRequest, interruption: SignalGuard
) -> Iterator[Selftest]:
    """The growing document, up to a comparison that fails or measures nothing."""
    threshold, repository = _threshold(benchmark), open_repository(benchmark.folder)
    head, dirty = repository.head(), bool(repository.changed_files())
    notes = (LEFT_OUT,) if dirty else ()
    for line in (f"both sides are HEAD, {short(head)}, in worktrees of their own", *notes):
        asked.tell(line)
    document = replace(document, commit=head, dirty=dirty, threshold=threshold, notes=notes)
    yield document
    loss, delay = FACTOR * threshold, 0.0
    planted = {None: 0.0, CURRENT: loss, BASELINE: loss / (loss - 1)}
    run = nullcontext(asked.home) if benchmark.setup is None else kept_run(asked.home)
    both = {BASELINE: head, CURRENT: head}
    with (
        run as logs,
        prepared_sides(repository, both, asked.home, benchmark, logs, asked.tell) as sides,
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
    share = next((benchmark.thresholds[m] for m in BY_TURNS if m in benchmark.thresholds), None)
    if share is None or share > MOST_THRESHOLD:
        what = f"the selftest needs a gated speed with a threshold up to {MOST_THRESHOLD:.0%}"
        raise GpurunError(what, "try --metrics throughput --threshold 5%")
    return share


def with_part(
    document: Selftest, plan: SelftestPlan, planted: float, delay: float, found: Comparison
) -> Selftest:
    """The document with one more comparison, of which `planted` is the slowdown to be found, by
    `delay` seconds a step."""
    answer = ANSWERS.get(found.verdict)
    wrong = None if answer is None else _wrong(plan, answer, delay, found)
    right = False if wrong is not None else True if answer == plan.expected else None
    part = SelftestPart(plan.part, plan.expected, answer, right, planted, delay, wrong, found)
    parts = (*document.parts, part)
    rights = [one.right for one in parts]
    verdict, code, todo = "inconclusive", int(ExitCode.INCONCLUSIVE), AGAIN
    if answer is None:
        verdict, code, todo = found.verdict, found.exit_code, found.recommendation or AGAIN
    elif False in rights:
        verdict, code, todo = "wrong", int(ExitCode.BENCHMARK_FAILED), UNTRUSTED
    elif None in rights:
        todo = parts[rights.index(None)].comparison.recommendation
    elif len(parts) == len(PLANS):
        verdict, code, todo = "pass", int(ExitCode.OK), TRUSTED
    document = replace(document, parts=parts, verdict=verdict, exit_code=code)
    return replace(document, recommendation=todo, error=found.error)


def seconds_a_step(launches: Sequence[BenchmarkLaunch]) -> float | None:
    """Mean seconds of a step in the measured windows, None if nothing was measured."""
    windows = [(launch.measured_seconds, launch.measured_steps) for launch in launches]
    return mean(seconds / steps for seconds, steps in windows if seconds and steps)


def _wrong(plan: SelftestPlan, answer: str, delay: float, found: Comparison) -> str | None:
    """What is wrong with the sleep or with the answer to it, None if nothing is."""
    sides = {BASELINE: found.baseline.launches, CURRENT: found.current.launches}
    for side, launches in sides.items():
        asked = delay if side == plan.slowed else 0.0
        slept = [launch.planted_step_seconds or 0.0 for launch in launches]
        if any(s < THERE * asked or (s and not asked) for s in slept):
            told = f"{1000 * min(slept):.3g} to {1000 * max(slept):.3g} ms a step"
            return f"launches of the {side} side slept {told}, not {1000 * asked:.3g} ms"
    speed = any(Metric(m.metric) in BY_TURNS and m.verdict == "regression" for m in found.metrics)
    if answer == RED == plan.expected and not speed:
        return "the gate went red for another metric than throughput"
    if answer in (plan.expected, UNDECIDED):
        return None
    before, now = map(seconds_a_step, sides.values())
    if plan.expected == RED and before and now and now - before < FELT * delay:
        return (
            f"each step slept, but takes only {1000 * (now - before):.3g} ms longer: the training "
            "waits anyway (for its data, say), and this delay costs no throughput"
        )
    return f"the gate went {answer} although {plan.said}"
