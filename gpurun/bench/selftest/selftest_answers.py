"""The three comparisons of a selftest, and whether the gate's answer to each is right. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpurun.bench.compare.comparison_document import SPEED
from gpurun.bench.trees.prepared_sides import BASELINE, CURRENT
from gpurun.errors import ExitCode
from gpurun.measure.optional_figures import mean
from gpurun.records.bench.benchmark import BenchmarkLaunch
from gpurun.records.bench.comparison import Comparison
from gpurun.records.bench.metrics import Metric
from gpurun.records.bench.selftest import Selftest, SelftestPart

GREEN, RED, UNDECIDED = "green", "red", "undecided"
ANSWERS = {"pass": GREEN, "regression": RED, "inconclusive": UNDECIDED}
THERE = 0.9
"""Each launch of the slowed side must record this share of its delay."""
FELT = 0.5
"""If steps get longer by less than this share of the delay, the training waits for something."""
AGAIN = "run it again"
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
    speed = any(Metric(m.metric) in SPEED and m.verdict == "regression" for m in found.metrics)
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
