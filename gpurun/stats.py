"""Statistics of launches: the tuner's paired sequential test and a few descriptive figures.

The unit is a launch, never a step: steps of one launch are autocorrelated, and the drift between
launches is invisible inside one. Candidate and baseline are launched in turn; each pair gives
d = ln(candidate / baseline). At each look a t interval on the mean of d is drawn at that look's
share of the error. The shares add up to `alpha`, so by Bonferroni's inequality all intervals of the
design hold together with probability 1 - `alpha`, whatever the joint law of the looks and whichever
look the test stops at. What the t interval itself assumes is that the d of different pairs are
independent and roughly symmetric; `scripts/simulate_error_rates.py` shows what happens otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise


@dataclass(frozen=True)
class SequentialPlan:
    """When the test looks and how much of the error each look may spend.

    The first look, at two pairs, gets a large share because a t interval with one degree of freedom
    is so wide that a fivefold gain would not be seen with less.
    """

    looks: tuple[int, ...] = (2, 3, 4, 6, 8, 12)
    levels: tuple[float, ...] = (0.010, 0.005, 0.010, 0.010, 0.010, 0.005)
    """Two-sided error of each look; their sum is `alpha`."""
    sd_floor: float = 0.002
    """Smallest standard deviation of d that is believed: two pairs may agree by chance."""
    precise: float = 2.5
    """A proven gain settles only once the ends of its interval are no further apart than this
    factor: "1.4 to 5 times faster" is no answer while there is time for a better one."""
    irrelevant: float = 0.02
    """A gain or loss below this fraction is of no interest: an interval within it settles."""
    prior_sd: float = 0.0
    """What is known beforehand of the standard deviation of d between launches."""
    prior_freedom: int = 0
    """How many further pairs that knowledge is worth: a scaled inverse chi-squared prior on the
    variance (Gelman et al., Bayesian Data Analysis, section 2.6). 0: nothing is known."""

    def __post_init__(self) -> None:
        if len(self.looks) != len(self.levels) or list(self.looks) != sorted(set(self.looks)):
            raise ValueError("looks must rise, with one level each")
        if self.looks[0] < 2:
            raise ValueError("a look needs at least two pairs")

    @property
    def alpha(self) -> float:
        """The overall two-sided error."""
        return sum(self.levels)


DEFAULT = SequentialPlan()
"""For launches in turn."""
LIVE = SequentialPlan(precise=1.21, irrelevant=0.03, prior_sd=0.03, prior_freedom=4)
"""For live pairs, which differ by 1 to 5 % from launch to launch and settle within ±10 %."""


WIDE = 4.0
"""The ends of an interval around 1 that are further apart than this factor say nothing."""


def says_nothing(interval: tuple[float, float]) -> bool:
    """Whether an interval of a factor is so wide around 1 that it is better not shown."""
    low, high = interval
    return low <= 1.0 <= high and high > WIDE * low


@dataclass(frozen=True)
class Look:
    """What the test says at its latest completed look; pairs after that look are not used yet.

    Before the first look `speedup`, `interval` and `p_value` are None and nothing is settled. The
    interval is the common part of those of all looks so far, so a proven gain stays proven.
    `speedup` is the geometric mean of candidate / baseline; `p_value` is adjusted for the looks, so
    that it is below `alpha` exactly where `interval` excludes 1.
    """

    speedup: float | None
    interval: tuple[float, float] | None
    p_value: float | None
    significant: bool
    settled: bool
    pairs_used: int
    looks_used: int


def sequential_look(pairs: Sequence[tuple[float, float]], plan: SequentialPlan = DEFAULT) -> Look:
    """Judge (baseline, candidate) throughputs of paired launches, in the order they were run.

    To be called after every pair; a budget that ends between two looks leaves the earlier one.
    """
    done = [i for i, n in enumerate(plan.looks) if n <= len(pairs)]
    if not done:
        return Look(None, None, None, False, False, 0, 0)
    logs = [math.log(candidate / baseline) for baseline, candidate in pairs]
    looks = [_one_look(logs[: plan.looks[i]], plan, plan.levels[i]) for i in done]
    average, interval, _ = looks[-1]
    # All intervals hold together at the overall level, so their common part does too.
    low, high = max(i[0] for _, i, _ in looks), min(i[1] for _, i, _ in looks)
    if low < high:
        interval = (low, high)
    significant = not interval[0] <= 1.0 <= interval[1]
    precise = significant and interval[1] <= plan.precise * interval[0]
    futile = 1 - plan.irrelevant < interval[0] and interval[1] < 1 + plan.irrelevant
    return Look(
        speedup=min(max(math.exp(average), interval[0]), interval[1]),
        interval=interval,
        p_value=min(p for _, _, p in looks),
        significant=significant,
        settled=precise or futile or done[-1] == len(plan.looks) - 1,
        pairs_used=plan.looks[done[-1]],
        looks_used=done[-1] + 1,
    )


def _one_look(
    logs: Sequence[float], plan: SequentialPlan, level: float
) -> tuple[float, tuple[float, float], float]:
    """Mean of d, the interval of its exponential at `level`, and the p-value adjusted for looks."""
    n = len(logs)
    average = mean(logs)
    deviation, freedom = updated_deviation(logs, plan.prior_sd, plan.prior_freedom)
    error = max(deviation, plan.sd_floor) / math.sqrt(n)
    half = t_quantile(freedom, 1 - level / 2) * error
    p_value = min(1.0, 2 * t_upper_tail(freedom, abs(average) / error) * plan.alpha / level)
    return average, (math.exp(average - half), math.exp(average + half)), p_value


@lru_cache(maxsize=256)  # a plan asks for a handful of them, a simulation a million times
def t_quantile(freedom: int, probability: float) -> float:
    """Student's t that is undercut with `probability`, for `freedom` degrees of freedom."""
    from scipy.special import stdtrit  # scipy.stats has the same behind 0.7 s of imports

    return float(stdtrit(freedom, probability))


def t_upper_tail(freedom: int, t: float) -> float:
    """The probability that Student's t exceeds `t`: a one-sided p-value."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -t))


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def standard_deviation(values: Sequence[float]) -> float:
    """That of a sample: at least two values, n - 1 degrees of freedom."""
    center = mean(values)
    return math.sqrt(math.fsum((v - center) ** 2 for v in values) / (len(values) - 1))


def updated_deviation(
    values: Sequence[float], prior_sd: float, prior_freedom: int
) -> tuple[float, int]:
    """The standard deviation by a sample and by what was known before, and its degrees of freedom.

    The prior on the variance is a scaled inverse chi-squared one, worth `prior_freedom` values
    (Gelman et al., Bayesian Data Analysis, section 2.6). Student's t with that freedom then bounds
    the mean.
    """
    own = len(values) - 1
    freedom = own + prior_freedom
    squares = own * standard_deviation(values) ** 2 + prior_freedom * prior_sd**2
    return math.sqrt(squares / freedom), freedom


def lag_one_correlation(values: Sequence[float]) -> float | None:
    """Correlation of neighbours in a series, as it is estimated; None where all values are equal.

    For n values of true correlation rho the estimate is biased by about -(1 + 4 rho) / n (Kendall,
    Biometrika 41, 1954), and its standard error is about 1 / sqrt(n).
    """
    center = mean(values)
    rest = [v - center for v in values]
    total = math.fsum(r * r for r in rest)
    if total == 0:
        return None
    return math.fsum(a * b for a, b in pairwise(rest)) / total


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile by linear interpolation between order statistics (numpy's default)."""
    return percentile_of_sorted(sorted(values), percent)


def percentile_of_sorted(ordered: Sequence[float], percent: float) -> float:
    """As `percentile`, for values that are sorted already."""
    if not ordered:
        raise ValueError("a percentile needs at least one value")
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return percentile(values, 50)


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))
