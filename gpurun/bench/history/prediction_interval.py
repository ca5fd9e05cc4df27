"""The decision of `--compare REF --from-history`: is a new run worse than those before it?

The baseline is not launched: its last records stand for it. The machine may have changed between
them and the new run, and nothing cancels that, as launches in turn would. So the new run is held
against the interval in which one more run falls if nothing has changed: Student's t prediction
interval. The unit is a run, not a launch. The error of the new run itself remains however many
records there are.

Simulation (`scripts/simulate_from_history.py`) gives the two factors by which the interval is
widened. They stand for noise that is correlated or has heavy tails, which few records do not show.
With 4 to 10 records and the factors, at most 1 % of equal runs regress, at most 5 % of slowdowns
of the threshold pass; without them up to 2 % and 8.5 %. A noise model that is estimated from the
records (as for change points) does no better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.pairs.gate import (
    IRRELEVANT,
    PASS_ERROR,
    REGRESSION_ERROR,
    GateResult,
    MetricResult,
    Verdict,
    answer,
    together,
)
from gpurun.records.bench.metrics import Metric
from gpurun.stats.change_points import Point
from gpurun.stats.descriptive import SD_FLOOR, mean, standard_deviation
from gpurun.stats.student_t import t_quantile, t_upper_tail

MOST_RUNS, LEAST_RUNS = 10, 4
"""The number of runs that stand for the baseline."""
LOWER_WIDENING, UPPER_WIDENING = 1.4, 1.25
"""Of the error of both bounds, fitted to simulated records whose noise is correlated or has heavy
tails."""


@dataclass(frozen=True)
class NewRun:
    """One gated metric: the figures of each launch, run by run, oldest first, all positive.

    `threshold`: the slowdown that must not pass, a fraction.
    """

    metric: Metric
    past: Sequence[Point]
    current: Point
    threshold: float


def judge_new_run(held: Sequence[NewRun]) -> GateResult:
    """The verdict over all metrics; the chance of a false regression is shared among them.

    One regressed metric is a regression; all must pass to pass. ValueError where a metric has
    fewer runs than `LEAST_RUNS`, or none is given.
    """
    if not held or any(len(one.past) < LEAST_RUNS for one in held):
        raise ValueError(f"a run is compared with {LEAST_RUNS} others or more")
    metrics = tuple(_judged(one, len(held)) for one in held)
    verdict = together([metric.verdict for metric in metrics])
    return GateResult(Verdict.INCONCLUSIVE if verdict is Verdict.MORE else verdict, 0, metrics)


def _judged(held: NewRun, metrics: int) -> MetricResult:
    worse, error = _shift(held)
    freedom = len(held.past) - 1
    low_error, high_error = LOWER_WIDENING * error, UPPER_WIDENING * error
    low = worse - t_quantile(freedom, 1 - REGRESSION_ERROR / metrics) * low_error
    high = worse + t_quantile(freedom, 1 - PASS_ERROR) * high_error
    irrelevant = held.metric.log_of_slowdown(min(IRRELEVANT, held.threshold))
    tail = metrics * t_upper_tail(freedom, (worse - irrelevant) / low_error)
    return answer(held.metric, held.threshold, irrelevant, (low, worse, high), tail)


def _shift(held: NewRun) -> tuple[float, float]:
    """The logarithm by which the new run is worse than expected, and its standard error."""
    runs = (*held.past, held.current)
    logs = [[held.metric.log_worse(1.0, value) for value in run.values] for run in runs]
    *past, new = map(mean, logs)
    spread = max(standard_deviation(past), SD_FLOOR)
    error = spread * math.sqrt(1 + 1 / len(past))
    return new - mean(past), math.hypot(error, math.sqrt(_unseen(logs)))


def _unseen(logs: Sequence[Sequence[float]]) -> float:
    """The variance that the new run has beyond the others since it has fewer launches than they."""
    freedom = sum(len(run) - 1 for run in logs)
    if freedom == 0:
        return 0.0
    squares = math.fsum((value - mean(run)) ** 2 for run in logs for value in run)
    *past, current = (1 / len(run) for run in logs)
    return max(0.0, current - mean(past)) * squares / freedom
