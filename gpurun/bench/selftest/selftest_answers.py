"""Is the gate's answer right, and was what it answers to really there? Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.bench.benchmark_launcher import Launch
from gpurun.bench.compare.comparison_document import SPEED
from gpurun.errors import ExitCode
from gpurun.records.bench.comparison import Comparison, MetricComparison
from gpurun.records.bench.selftest import SelftestPart

UNCHANGED, RUNTIME, MODULE = "unchanged", "runtime", "module"
GREEN, RED, UNDECIDED = "green", "red", "undecided"
ANSWERS = {"pass": GREEN, "regression": RED, "inconclusive": UNDECIDED}

FACTOR = 2.0
"""The planted slowdown is so many times the threshold."""
MOST_THRESHOLD = 0.4
"""Twice a larger threshold would leave no throughput to measure."""
THERE = 0.9
"""So much of the planted delay must be on record in every launch."""
FELT = 0.5
"""And so much of it in the time that a step takes, or something hides it."""

EXIT_CODES = {
    "pass": ExitCode.OK,
    "wrong": ExitCode.BENCHMARK_FAILED,
    "inconclusive": ExitCode.INCONCLUSIVE,
}


@dataclass(frozen=True)
class Plan:
    """The delay of one part. `step_seconds`: in each step of the current side, None for nothing.

    `source`: whoever asked for it, as the launches' records must say: "runtime", or a file.
    """

    part: str
    step_seconds: float | None = None
    source: str | None = None
    file: str | None = None


def delay_for(slowdown: float, step_seconds: float) -> float:
    """The seconds by which a step must be longer for this fraction of throughput to be lost."""
    return step_seconds * slowdown / (1 - slowdown)


def seconds_a_step(launches: Sequence[Launch]) -> float | None:
    """Seconds of a step in the measured window, as the throughput counts it; None if unmeasured."""
    known = [
        launch.result.measured_seconds / launch.result.measured_steps
        for launch in launches
        if launch.result.measured_seconds and launch.result.measured_steps
    ]
    return sum(known) / len(known) if known else None


def speed_of(comparison: Comparison) -> MetricComparison | None:
    """The metric of a comparison that a delay is seen in."""
    names = [metric.value for metric in SPEED]
    return next((one for one in comparison.metrics if one.metric in names), None)


def judged(
    plan: Plan,
    planted_slowdown: float,
    comparison: Comparison,
    baseline: Sequence[Launch],
    current: Sequence[Launch],
) -> SelftestPart:
    """The part with its answer, from the document and the launches of both sides."""
    planted = plan.step_seconds is not None
    expected = RED if planted else GREEN
    answer = ANSWERS.get(comparison.verdict)
    wrong = None
    if answer is not None:
        wrong = _misplanted(plan, baseline, current)
        if wrong is None and answer not in (expected, UNDECIDED):
            wrong = _wrong(plan, comparison, baseline, current)
        elif wrong is None and answer == RED and not _lost_speed(comparison):
            wrong = "the gate went red for another metric than throughput"
    seen = [s for s in (launch.planted_step_seconds for launch in current) if s is not None]
    right = None if answer is None or (answer == UNDECIDED and wrong is None) else wrong is None
    return SelftestPart(
        part=plan.part,
        expected=expected,
        answer=answer,
        right=right,
        planted_slowdown=planted_slowdown if planted else None,
        step_seconds=plan.step_seconds,
        planted_step_seconds=(min(seen), max(seen)) if seen else None,
        file=plan.file,
        wrong=wrong,
        comparison=comparison,
    )


def verdict_of(parts: Sequence[SelftestPart]) -> str:
    """The verdict of all parts together."""
    if any(part.right is False for part in parts):
        return "wrong"
    whole = [part.part for part in parts] == [UNCHANGED, RUNTIME, MODULE]
    return "pass" if whole and all(part.right for part in parts) else "inconclusive"


def _lost_speed(comparison: Comparison) -> bool:
    speed = speed_of(comparison)
    return speed is not None and speed.verdict == "regression"


def _misplanted(plan: Plan, baseline: Sequence[Launch], current: Sequence[Launch]) -> str | None:
    """A delay that was planted but should not be, or should be on record but is not."""
    if any(launch.planted for launch in baseline):
        return "the baseline side was slowed down, too"
    if plan.step_seconds is None:
        return "something slowed the current side down" if any(x.planted for x in current) else None
    for number, launch in enumerate(current, 1):
        found = launch.planted_step_seconds
        if found is None:
            return f"launch {number} of the current side records no planted delay"
        if {one.where for one in launch.planted} != {plan.source}:
            return f"launch {number} of the current side was slowed down by something else"
        if found < THERE * plan.step_seconds:
            return (
                f"launch {number} of the current side records a delay of {1000 * found:.3g} ms a "
                f"step instead of {1000 * plan.step_seconds:.3g} ms"
            )
    return None


def _wrong(
    plan: Plan,
    comparison: Comparison,
    baseline: Sequence[Launch],
    current: Sequence[Launch],
) -> str:
    """Why the gate gave the wrong answer, as far as can be told."""
    if plan.step_seconds is None:
        return "the gate went red although nothing differs: this may happen once in 100 times"
    before, now = seconds_a_step(baseline), seconds_a_step(current)
    if before is not None and now is not None and now - before < FELT * plan.step_seconds:
        return (
            f"the delay was there in every step, but a step takes only "
            f"{1000 * (now - before):.3g} ms longer: the training waits for something else anyway "
            "(its data, say), and this slow-down costs no throughput"
        )
    return "the gate stayed green although the slow-down is there"
