"""How improbable is it that two samples differ so far by chance?

An exact test, without an assumption on distributions. `scipy.stats` costs 0.7 s of imports, so it
is imported only when the test is asked for.
"""

from __future__ import annotations


def chance_of_more(ours: tuple[int, int], theirs: tuple[int, int]) -> float:
    """Probability that so many more of ours have a property, if it is as frequent in both.

    Each pair is the number of those with it, and of all. Fisher's exact test, one-sided.
    """
    from scipy.stats import fisher_exact

    table = [[with_it, of_all - with_it] for with_it, of_all in (ours, theirs)]
    return float(fisher_exact(table, alternative="greater").pvalue)
