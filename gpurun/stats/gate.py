"""The decision of `gpurun bench --compare`: pass, regression, inconclusive, or one more pair.

The unit is a pair of launches, one of the baseline and one of the current tree. Each pair gives
d = ln of how much worse the current tree is. At each look, one-sided t bounds on the mean of d say
whether the slowdown is below the threshold (pass), or above 1 % and perhaps above the threshold
(regression). The levels of the bounds are such that over all looks the lower one errs in less than
1 % of comparisons and the upper one in less than 5 %, by simulation (`scripts/simulate_gate.py`).
There are two designs.

**Live pairs** (`GatePlan.live`). Both sides take turns of some steps, so the machine's drift
affects both. d then varies little from pair to pair: by the difference between launches of equal
code, and by the error of the turns, which each pair measures itself. The first part is known from
recorded pairs (`LAUNCH_PRIORS`). It counts like three further pairs, so that three can decide; the
pairs of the comparison at hand update it.

**Launches in turn** (A B, B A, ...), where live pairs cannot be. Neighbouring pairs may be
correlated (another job on the machine, a room that warms up). At a correlation of 0.3 unwidened
levels err in 2.8 % and 12 %, and no estimate from 4 to 16 pairs tells 0.3 from 0: its standard
error is 0.25 to 0.5. Widened by the estimate, freed of its bias, the bounds still err in 1.4 % and
6.8 %. Widened by its upper 80 % limit, or as for a known 0.3, the gate finds 87 % of slowdowns of
5 % at 2 % of independent noise, where 95 % are wanted. So the interval is widened by two factors,
whose constants come from simulation:

* (last look / this look) ** 0.8. Error that early looks do not spend is left for the last one,
  where it buys more: the last look then errs little enough without much widening;
* sqrt((1 + rho) / (1 - rho)), the effect of AR(1) noise on a mean, for 0.4 times the estimate:
  shrunk as its own noise demands, never below 0.

At a correlation of 0.3 the gate then errs in 0.8 % (nothing lost, at 10 % noise; less at less) and
in at most 4.7 % (the threshold lost). Under independent noise of 2 % it catches 96.9 %, 95.6 % with
heavy tails. At a correlation of 0.3 a true slowdown of 1 % regresses in up to 1.3 %; a further
factor of 1.06 would make that 0.9 %, and the 95.6 % 94.7 %. The price is pairs: 9.3 instead of 5.2
for an unchanged tree at 2 % noise, 6.0 instead of 4.1 at 1 %.

Every figure counts: an outlier is never dropped here. A pair that was disturbed for a recorded
cause is run again by the caller before the gate sees it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpurun.errors import ExitCode, GpurunError
from gpurun.records.bench.metrics import Metric
from gpurun.stats.autocorrelation import lag_one_correlation
from gpurun.stats.descriptive import mean, root_mean_square
from gpurun.stats.gated_metric import Gated
from gpurun.stats.student_t import t_quantile, t_upper_tail
from gpurun.stats.variance_prior import SD_FLOOR, updated_deviation


class Verdict(enum.Enum):
    """The answer of a comparison. MORE: take another pair."""

    PASS = "pass"
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"
    MORE = "more"


@dataclass(frozen=True)
class LaunchPrior:
    """The assumed variation of d between live pairs of equal launches.

    `sd`: its standard deviation beyond the error of the turns. `pairs`: that knowledge is worth so
    many further pairs.
    """

    sd: float
    pairs: int


SPEED_PRIOR = LaunchPrior(sd=0.02, pairs=3)
LAUNCH_PRIORS = {
    Metric.THROUGHPUT: SPEED_PRIOR,
    Metric.STEP_TIME: SPEED_PRIOR,
    Metric.PEAK_MEMORY: LaunchPrior(sd=0.003, pairs=3),
}
"""From recorded pairs of equal launches (`scripts/record_live_pairs.py`). Other metrics have no
assumption."""
NOTHING_KNOWN = LaunchPrior(sd=0.0, pairs=0)
LIVE_LOOKS = (3, 4, 5, 6, 8, 10, 12, 16)
LIVE_CAUTION = 0.3
"""For live pairs: drift cancels within each, so only early looks widen the interval."""


@dataclass(frozen=True)
class GatePlan:
    """When the gate looks, how much each look may err, and how correlation widens its interval.

    `lower_level`, `upper_level`: one-sided errors of the two bounds at one look. Over all looks the
    first makes `regression_error`, to which p-values are adjusted, the second 5 %.
    """

    looks: tuple[int, ...] = (4, 6, 8, 12, 16)
    lower_level: float = 0.00255
    upper_level: float = 0.0154
    regression_error: float = 0.01
    irrelevant: float = 0.01
    """A slowdown not proven above this is no regression; the threshold, where that is less."""
    caution: float = 0.8
    """Exponent of the widening of early looks; 0 does without."""
    believed: float = 0.4
    """Share of the estimated correlation that widens the interval; 0 does without."""
    guarded: float = 0.3
    """The correlation up to which the errors hold: there the estimate is freed of its bias."""
    live: bool = False
    """True for live pairs: then `LAUNCH_PRIORS` hold."""

    @classmethod
    def up_to(cls, max_pairs: int) -> GatePlan:
        """The plan whose last look is at `max_pairs`: further looks are at 24, 32, 48, 64, ..."""
        first = cls.looks[0]
        if max_pairs < first:
            raise GpurunError(
                f"--max-pairs {max_pairs} ends before the first look, which takes {first} pairs",
                f"allow at least {first} pairs; by default {cls.looks[-1]}",
            )
        looks = list(cls.looks)
        while looks[-1] < max_pairs:
            looks.append(2 * looks[-2])
        return cls(looks=(*(n for n in looks if n < max_pairs), max_pairs))

    @property
    def of_live_pairs(self) -> GatePlan:
        """The plan for live pairs that has the same last look."""
        last = self.looks[-1]
        looks = (*(n for n in dict.fromkeys((*LIVE_LOOKS, *self.looks)) if n < last), last)
        return replace(self, looks=looks, caution=LIVE_CAUTION, believed=0.0, live=True)

    def prior(self, metric: Metric) -> LaunchPrior:
        """The assumption about pairs of this metric."""
        return LAUNCH_PRIORS.get(metric, NOTHING_KNOWN) if self.live else NOTHING_KNOWN

    def widening(self, pairs: int, correlation: float | None) -> float:
        """The factor for the standard error at a look, at least 1; by estimated correlation."""
        rho = self.believed * max(0.0, correlation or 0.0)
        early = math.pow(self.looks[-1] / pairs, self.caution)
        return early * math.sqrt((1 + rho) / (1 - rho))


DEFAULT = GatePlan()


@dataclass(frozen=True)
class MetricResult:
    """One metric at the latest completed look; before the first look all but the first are None.

    `slowdown` and its interval are fractions as `Metric` defines them. The interval is the
    common part of those of all looks; the lower bounds of all metrics hold together at 1 %, the
    upper bound at 5 %. `p_value`: of a slowdown no more than irrelevant, adjusted for looks and
    for the number of metrics, so that it is below 0.01 exactly where the lower bound is above that.
    `correlation` of neighbouring pairs, freed of bias, None where all pairs agree exactly;
    `widening`: the factor by which it, and the earliness of the look, widened the interval.
    `pair_sd`: the standard deviation of d that the bounds stand on, without the widening.
    """

    metric: Metric
    verdict: Verdict
    threshold: float
    slowdown: float | None = None
    interval: tuple[float, float] | None = None
    p_value: float | None = None
    correlation: float | None = None
    widening: float | None = None
    pair_sd: float | None = None


@dataclass(frozen=True)
class GateResult:
    """The answer of all gated metrics together. `next_look`: the pairs that MORE asks for."""

    verdict: Verdict
    pairs_used: int
    next_look: int | None
    p_value: float | None
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
        raise ValueError("a gate needs a metric")
    counts = {g.metric.value: len(g.pairs) for g in gated}
    if len(set(counts.values())) > 1:
        raise GpurunError(
            f"not every pair has all gated metrics: pairs by metric {counts}",
            "gate only metrics that every launch reports",
            ExitCode.BENCHMARK_FAILED,
        )
    tracks = [_Track(g, plan, len(gated)) for g in gated]
    verdict, used = Verdict.MORE, 0
    for n in (n for n in plan.looks if n <= len(gated[0].pairs)):
        for track in tracks:
            track.look(n)
        verdict, used = _together([track.verdict for track in tracks]), n
        if verdict is not Verdict.MORE:
            break
    if verdict is Verdict.MORE and used == plan.looks[-1]:
        verdict = Verdict.INCONCLUSIVE
    p_values = [track.p_value for track in tracks if track.p_value is not None]
    return GateResult(
        verdict=verdict,
        pairs_used=used,
        next_look=next(n for n in plan.looks if n > used) if verdict is Verdict.MORE else None,
        p_value=min(p_values, default=None),
        metrics=tuple(track.result(verdict) for track in tracks),
    )


def _together(verdicts: Sequence[Verdict]) -> Verdict:
    if Verdict.REGRESSION in verdicts:
        return Verdict.REGRESSION
    return Verdict.MORE if Verdict.MORE in verdicts else Verdict.PASS


class _Track:
    """One metric on its way through the looks; all in terms of d until the result."""

    def __init__(self, gated: Gated, plan: GatePlan, metrics: int) -> None:
        self.gated, self.plan = gated, plan
        self.worse = gated.log_worse()
        self.lower_level = plan.lower_level / metrics
        self.adjustment = plan.regression_error / self.lower_level
        self.threshold = gated.metric.log_of_slowdown(gated.threshold)
        self.irrelevant = gated.metric.log_of_slowdown(min(plan.irrelevant, gated.threshold))
        self.average = 0.0
        self.low, self.high = -math.inf, math.inf
        self.p_value: float | None = None
        self.correlation: float | None = None
        self.widening: float | None = None
        self.pair_sd: float | None = None

    def look(self, n: int) -> None:
        worse, plan = self.worse[:n], self.plan
        self.average = mean(worse)
        self.correlation = _unbiased(lag_one_correlation(worse), n, plan.guarded)
        self.widening = plan.widening(n, self.correlation)
        prior = plan.prior(self.gated.metric)
        known = math.hypot(prior.sd, root_mean_square(self.gated.errors[:n]))
        self.pair_sd, freedom = updated_deviation(worse, known, prior.pairs)
        # The floor stands for what is not seen; what is not seen is not widened.
        error = max(self.pair_sd * self.widening, SD_FLOOR) / math.sqrt(n)
        low = self.average - t_quantile(freedom, 1 - self.lower_level) * error
        high = self.average + t_quantile(freedom, 1 - plan.upper_level) * error
        tail = t_upper_tail(freedom, (self.average - self.irrelevant) / error)
        p_value = min(1.0, tail * self.adjustment)
        # All bounds hold together, so their common part does; where there is none, the latest.
        if max(low, self.low) <= min(high, self.high):
            low, high = max(low, self.low), min(high, self.high)
            p_value = min(p_value, 1.0 if self.p_value is None else self.p_value)
        self.low, self.high, self.p_value = low, high, p_value

    @property
    def verdict(self) -> Verdict:
        if self.high < self.threshold:
            return Verdict.PASS
        return Verdict.REGRESSION if self.low > self.irrelevant else Verdict.MORE

    def result(self, together: Verdict) -> MetricResult:
        gated, slowdown = self.gated, self.gated.metric.slowdown
        # An undecided metric stays so once the comparison as a whole has ended.
        verdict = self.verdict
        if verdict is Verdict.MORE and together is not Verdict.MORE:
            verdict = Verdict.INCONCLUSIVE
        if self.widening is None:
            return MetricResult(gated.metric, verdict, gated.threshold)
        return MetricResult(
            gated.metric,
            verdict,
            gated.threshold,
            slowdown=slowdown(min(max(self.average, self.low), self.high)),
            interval=(slowdown(self.low), slowdown(self.high)),
            p_value=self.p_value,
            correlation=self.correlation,
            widening=self.widening,
            pair_sd=self.pair_sd,
        )


def _unbiased(estimate: float | None, pairs: int, truth: float) -> float | None:
    """The lag-one estimate without the bias that it has where the correlation is `truth`."""
    if estimate is None:
        return None
    return min(1.0, max(-1.0, estimate + (1 + 4 * truth) / pairs))
