"""The decision of `gpurun bench --compare`: pass, regression, inconclusive, or one more pair.

Each pair of launches gives d = ln of how much worse the current tree is. At each look one-sided
bounds of their estimate say whether the slowdown is below the threshold (pass), or above 1 % and
perhaps above the threshold (regression). The levels of the lower bound add up to 1 % over all
looks, those of the upper one to 5 %. The last look gets much of both: there it buys the most.
`scripts/simulate_pairs.py` has the error rates. Every figure counts, none is dropped here.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.errors import ExitCode, GpurunError
from gpurun.pairs.estimate import LOOKS, Reading, estimate, reading
from gpurun.records.bench.metrics import Metric

REGRESSION_ERROR, PASS_ERROR = 0.01, 0.045
"""The chance of a false regression and of a false pass, over all looks. SPEC allows 5 % of false
passes: where launches differ by four times what is assumed, these levels give a little more."""
LAST_OF_REGRESSION, LAST_OF_PASS = 0.7, 0.5
"""The share of each that the last look spends; the others spend equal parts of the rest. Fitted to
recorded pairs: with 0.6 and 0.36, 12 pairs find 94.4 % of losses of 8 % and leave 11.2 % of equal
trees undecided; with these, 95.3 and 9.0 % (`scripts/simulate_pairs.py --recorded`)."""
IRRELEVANT = 0.01
"""SPEC: a slowdown not proven above this is no regression; the threshold, where that is less."""


class Verdict(enum.Enum):
    """The answer of a comparison. MORE: take another pair."""

    PASS = "pass"
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"
    MORE = "more"


@dataclass(frozen=True)
class GatePlan:
    """When the gate looks, after so many pairs. The others: see the constants."""

    looks: tuple[int, ...] = LOOKS
    irrelevant: float = IRRELEVANT
    regression_error: float = REGRESSION_ERROR
    pass_error: float = PASS_ERROR

    @classmethod
    def up_to(cls, max_pairs: int) -> GatePlan:
        """The plan whose last look is at `max_pairs`: further looks are at 24, 32, 48, 64, ..."""
        if max_pairs < LOOKS[0]:
            raise GpurunError(
                f"--max-pairs {max_pairs} ends before the first look, which takes {LOOKS[0]} pairs",
                f"allow at least {LOOKS[0]} pairs; by default {LOOKS[-1]}",
            )
        looks = list(LOOKS)
        while looks[-1] < max_pairs:
            looks.append(2 * looks[-2])
        return cls((*(n for n in looks if n < max_pairs), max_pairs))

    def levels(self, pairs: int) -> tuple[float, float]:
        """The one-sided errors of the lower and the upper bound at a look."""
        early = len(self.looks) - 1
        if not early:
            return self.regression_error, self.pass_error
        last = pairs == self.looks[-1]
        lower = LAST_OF_REGRESSION if last else (1 - LAST_OF_REGRESSION) / early
        upper = LAST_OF_PASS if last else (1 - LAST_OF_PASS) / early
        return lower * self.regression_error, upper * self.pass_error


DEFAULT = GatePlan()


@dataclass(frozen=True)
class Gated:
    """One metric under the gate: (baseline, current) of each pair in the order of the launches.

    `threshold`: the slowdown that fails (fraction). `errors`: of each pair, the standard error of
    ln of its ratio by turns, None where no turns measured it; empty: of none. `loose`: of each
    pair, as `is_loose`; empty: none is.
    """

    metric: Metric
    pairs: Sequence[tuple[float, float]]
    threshold: float
    errors: Sequence[float | None] = ()
    loose: Sequence[bool] = ()

    def readings(self) -> list[Reading]:
        """The d of each pair; refuses figures that are none, with the pair's number."""
        for number, pair in enumerate(self.pairs, 1):
            for side, figure in zip(("baseline", "current"), pair, strict=True):
                if not (math.isfinite(figure) and figure > 0):
                    raise GpurunError(
                        f"{self.metric.value} of the {side} in pair {number} is {figure:g}: "
                        "nothing was measured",
                        "look at that launch's record, or do not gate this metric",
                        ExitCode.BENCHMARK_FAILED,
                    )
        errors = self.errors or [None] * len(self.pairs)
        loose = self.loose or [False] * len(self.pairs)
        logs = [self.metric.log_worse(*pair) for pair in self.pairs]
        return [reading(self.metric, *one) for one in zip(logs, errors, loose, strict=True)]


@dataclass(frozen=True)
class MetricResult:
    """One metric at the latest look; before the first look all but the first three are None.

    `slowdown` and its interval are fractions as `Metric` defines them. Over all looks the lower
    bounds of all metrics hold together at 99 %, the upper bound at 95 %. `p_value`: of a slowdown
    no more than irrelevant, adjusted for looks and for the number of metrics, so that it is below
    0.01 exactly where the lower bound is above that. `pair_sd`: the standard deviation of an
    average pair that the bounds stand on.
    """

    metric: Metric
    verdict: Verdict
    threshold: float
    slowdown: float | None = None
    interval: tuple[float, float] | None = None
    p_value: float | None = None
    pair_sd: float | None = None


@dataclass(frozen=True)
class GateResult:
    """The answer of all gated metrics together."""

    verdict: Verdict
    pairs_used: int
    metrics: tuple[MetricResult, ...]

    @property
    def regressed(self) -> tuple[MetricResult, ...]:
        """The metrics that are proven worse."""
        return tuple(m for m in self.metrics if m.verdict is Verdict.REGRESSION)


def judge(gated: Sequence[Gated], plan: GatePlan = DEFAULT) -> GateResult:
    """Judge paired launches; to be called after every pair.

    The comparison ends at the first look that decides; pairs after it are not used. One regressed
    metric is a regression, and the lower bounds share the error for that. All must pass to pass:
    that needs no sharing, since one metric that is worse must be missed by its own bound.
    """
    if not gated:
        raise GpurunError(
            "none of the gated metrics was measured",
            "gate one that launches report: --metrics step_time",
            ExitCode.BENCHMARK_FAILED,
        )
    readings = [(g, g.readings()) for g in gated]
    metrics = tuple(MetricResult(g.metric, Verdict.MORE, g.threshold) for g in gated)
    verdict, used = Verdict.MORE, 0
    for n in (n for n in plan.looks if n <= len(gated[0].pairs)):
        metrics = tuple(_look(g, own[:n], plan, len(gated)) for g, own in readings)
        verdict, used = together([m.verdict for m in metrics]), n
        if verdict is not Verdict.MORE:
            break
    if verdict is Verdict.MORE and used == plan.looks[-1]:
        verdict = Verdict.INCONCLUSIVE
    return GateResult(verdict, used, metrics)


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict over several metrics: a regression of one, else what is open, else a pass."""
    for worse in (Verdict.REGRESSION, Verdict.MORE, Verdict.INCONCLUSIVE):
        if worse in verdicts:
            return worse
    return Verdict.PASS


def _look(gated: Gated, readings: Sequence[Reading], plan: GatePlan, metrics: int) -> MetricResult:
    metric = gated.metric
    found = estimate(readings)
    lower, upper = plan.levels(len(readings))
    low = found.log - found.half_width(lower / metrics)
    high = found.log + found.half_width(upper)
    irrelevant = metric.log_of_slowdown(min(plan.irrelevant, gated.threshold))
    p_value = found.tail(irrelevant) * metrics * plan.regression_error / lower
    bounds = (low, found.log, high)
    return answer(metric, gated.threshold, irrelevant, bounds, p_value, found.pair_sd)


def answer(
    metric: Metric,
    threshold: float,
    irrelevant: float,
    bounds: tuple[float, float, float],
    p_value: float,
    pair_sd: float | None = None,
) -> MetricResult:
    """The answer of one metric. `irrelevant` and `bounds` (lower, estimate, upper) are logarithms
    of how much worse the current tree is."""
    low, log, high = bounds
    verdict = Verdict.REGRESSION if low > irrelevant else Verdict.MORE
    if high < metric.log_of_slowdown(threshold):
        verdict = Verdict.PASS
    return MetricResult(
        metric,
        verdict,
        threshold,
        slowdown=metric.slowdown(log),
        interval=(metric.slowdown(low), metric.slowdown(high)),
        p_value=min(1.0, p_value),
        pair_sd=pair_sd,
    )
