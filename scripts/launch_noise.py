"""Noise of launches, as simulations of our sequential tests draw it.

Laws: `gauss`; `t3` (Student with 3 degrees of freedom, heavy tails); `drift` (Gaussian on top of a
machine that slows down by 3 noise units over 24 launches); `walk` (Gaussian plus a random walk of
half a noise unit a launch: 6 % more noise in a pair than the others have); `ar` (Gaussian, with a
correlation of 0.3 between neighbouring pairs).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

INDEPENDENT = ("gauss", "t3", "drift", "walk")
CORRELATED = "ar"
CORRELATION = 0.3


def paired_errors(
    law: str, tests: int, pairs: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Errors of (baseline, current) in noise units, shape (tests, pairs, 2).

    Launches run in the order A B, B A, A B, ...: what drifts goes through them in that order.
    """
    launches = 2 * pairs
    errors = (
        rng.standard_t(3, (tests, launches)) / np.sqrt(3)  # unit variance
        if law == "t3"
        else rng.standard_normal((tests, launches))
    )
    if law == "drift":
        errors -= 3 * np.arange(launches) / 24
    elif law == "walk":
        errors += np.cumsum(rng.normal(0, 0.5, (tests, launches)), axis=1)
    sides = errors.reshape(tests, pairs, 2)
    if law == CORRELATED:
        for pair in range(1, pairs):
            fresh = np.sqrt(1 - CORRELATION**2) * sides[:, pair]
            sides[:, pair] = CORRELATION * sides[:, pair - 1] + fresh
    else:
        sides[:, 1::2] = sides[:, 1::2, ::-1].copy()
    return sides
