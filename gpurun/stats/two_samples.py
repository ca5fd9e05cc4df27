"""How improbable is it that two samples differ so far by chance?

Exact or rank tests, without an assumption on distributions. `scipy.stats` costs 0.7 s of imports,
so it is imported only when a test is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence


def chance_of_larger(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Probability that values as much larger than the others come from the same distribution.

    The one-sided test of Mann and Whitney (1947).
    """
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(ours, theirs, alternative="greater").pvalue)


def chance_of_more(ours: tuple[int, int], theirs: tuple[int, int]) -> float:
    """Probability that so many more of ours have a property, if it is as frequent in both.

    Each pair is the number of those with it, and of all. Fisher's exact test, one-sided.
    """
    from scipy.stats import fisher_exact

    table = [[with_it, of_all - with_it] for with_it, of_all in (ours, theirs)]
    return float(fisher_exact(table, alternative="greater").pvalue)


def chance_of_many(ours: tuple[int, int], part: float) -> float:
    """Probability that so many or more of ours have a property that a `part` of all has."""
    from scipy.stats import binom

    with_it, of_all = ours
    return float(binom.sf(with_it - 1, of_all, min(part, 1.0)))
