"""The paired sequential test by which the tuner says that a candidate is faster.

The unit is a launch, never a step: steps of one launch are autocorrelated, and the drift between
launches is invisible inside one. Candidate and baseline are launched in turn; each pair gives d =
ln(candidate / baseline). At each look a t interval on the mean of d is drawn at that look's share
of the error. The shares add up to `alpha`, so by Bonferroni's inequality all intervals of the
design hold together with probability 1 - `alpha`, whatever the joint law of the looks and whichever
look the test stops at. The t interval itself assumes that the d of different pairs are independent
and roughly symmetric. `scripts/simulate_error_rates.py` shows the error rates otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpurun.stats.descriptive import mean, root_mean_square
from gpurun.stats.student_t import t_quantile, t_upper_tail
from gpurun.stats.variance_prior import SD_FLOOR, updated_deviation


@dataclass(frozen=True)
class SequentialPlan:
    """When the test looks and how much of the error each look may spend.

    The first look, at two pairs, gets a large share because a t interval with one degree of freedom
    is so wide that a fivefold gain would not be seen with less.
    """

    looks: tuple[int, ...] = (2, 3, 4, 6, 8, 12)
    levels: tuple[float, ...] = (0.010, 0.005, 0.010, 0.010, 0.010, 0.005)
    """Two-sided error of each look; their sum is `alpha`."""
    precise: float = 2.5
    """A proven gain settles only once the ends of its interval are no further apart than this
    factor: "1.4 to 5 times faster" is no answer while there is time for a better one."""
    irrelevant: float = 0.02
    """A gain or loss below this fraction is of no interest: an interval within it settles."""
    prior_sd: float = 0.0
    """The assumed standard deviation of d between launches."""
    prior_freedom: int = 0
    """The number of further pairs that this assumption counts as: a scaled inverse chi-squared
    prior on the variance (Gelman et al., Bayesian Data Analysis, section 2.6). 0: nothing is known.
    """

    def __post_init__(self) -> None:
        if len(self.looks) != len(self.levels) or list(self.looks) != sorted(set(self.looks)):
            raise ValueError("looks must rise, with one level each")
        if self.looks[0] < 2 and not self.prior_freedom:
            raise ValueError("a look needs at least two pairs, or a prior")

    @property
    def alpha(self) -> float:
        """The overall two-sided error."""
        return sum(self.levels)


DEFAULT = SequentialPlan()
"""For launches in turn."""
LIVE = SequentialPlan(
    looks=(1, 2, 3, 4, 6, 8, 12),
    levels=(0.001, 0.010, 0.005, 0.010, 0.010, 0.010, 0.004),
    precise=1.21,
    irrelevant=0.03,
    prior_sd=0.03,
    prior_freedom=4,
)
"""For live pairs, which differ by 1 to 5 % from launch to launch and settle within ±10 %. The first
pair alone proves gains from about 1.3 on, more than eight deviations, and never settles."""


@dataclass(frozen=True)
class Look:
    """The result of the test at its latest completed look; pairs after that look are not used yet.

    Before the first look `speedup`, `interval` and `p_value` are None and nothing is settled. The
    interval is the common part of those of all looks so far, so a proven gain stays proven, unless
    they contradict one another: then the latest counts. `speedup` is the geometric mean of
    candidate / baseline; `p_value` is adjusted for the looks, so that it is below `alpha` exactly
    where `interval` excludes 1.
    """

    speedup: float | None
    interval: tuple[float, float] | None
    p_value: float | None
    significant: bool
    settled: bool
    pairs_used: int
    looks_used: int


def sequential_look(
    pairs: Sequence[tuple[float, float]],
    plan: SequentialPlan = DEFAULT,
    errors: Sequence[float] = (),
) -> Look:
    """Judge (baseline, candidate) throughputs of paired launches, in the order they were run.

    To be called after every pair; a budget that ends between two looks leaves the earlier one.
    `errors`: standard errors of d within each pair, where pairs are live. They widen what the plan
    assumes of the pairs.
    """
    done = [i for i, n in enumerate(plan.looks) if n <= len(pairs)]
    if not done:
        return Look(None, None, None, False, False, 0, 0)
    logs = [math.log(candidate / baseline) for baseline, candidate in pairs]
    looks = [
        _one_look(logs[:n], _widened(plan, errors[:n]), level)
        for n, level in ((plan.looks[i], plan.levels[i]) for i in done)
    ]
    average, interval, p_value = looks[-1]
    # All intervals hold together at the overall level, so their common part does too; where there
    # is none, the latest look counts alone.
    low, high = max(i[0] for _, i, _ in looks), min(i[1] for _, i, _ in looks)
    if low < high:
        interval, p_value = (low, high), min(p for _, _, p in looks)
    significant = not interval[0] <= 1.0 <= interval[1]
    precise = significant and interval[1] <= plan.precise * interval[0]
    futile = 1 - plan.irrelevant < interval[0] and interval[1] < 1 + plan.irrelevant
    return Look(
        speedup=min(max(math.exp(average), interval[0]), interval[1]),
        interval=interval,
        p_value=p_value,
        significant=significant,
        settled=precise or futile or done[-1] == len(plan.looks) - 1,
        pairs_used=plan.looks[done[-1]],
        looks_used=done[-1] + 1,
    )


def _widened(plan: SequentialPlan, errors: Sequence[float]) -> SequentialPlan:
    """The plan that assumes of d between launches also what the errors within pairs add to it."""
    return replace(plan, prior_sd=math.hypot(plan.prior_sd, root_mean_square(errors)))


def _one_look(
    logs: Sequence[float], plan: SequentialPlan, level: float
) -> tuple[float, tuple[float, float], float]:
    """Mean of d, the interval of its exponential at `level`, and the p-value adjusted for looks."""
    n = len(logs)
    average = mean(logs)
    deviation, freedom = updated_deviation(logs, plan.prior_sd, plan.prior_freedom)
    error = max(deviation, SD_FLOOR) / math.sqrt(n)
    half = t_quantile(freedom, 1 - level / 2) * error
    p_value = min(1.0, 2 * t_upper_tail(freedom, abs(average) / error) * plan.alpha / level)
    return average, (math.exp(average - half), math.exp(average + half)), p_value
