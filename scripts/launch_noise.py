"""Noise of launches, as simulations of our sequential tests draw it.

Laws: `gauss`; `t3` (Student with 3 degrees of freedom, heavy tails); `drift` (Gaussian on top of a
machine that slows down by 3 noise units over 24 launches); `walk` (Gaussian plus a random walk of
half a noise unit a launch: 6 % more noise in a pair than the others have); `ar` (Gaussian, with a
correlation of 0.3 between neighbouring pairs).
"""

from __future__ import annotations

import math
import random

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
    sides = _in_turn(law, tests, 2 * pairs, rng).reshape(tests, pairs, 2)
    if law == CORRELATED:
        _correlate(sides, CORRELATION)
    else:
        sides[:, 1::2] = sides[:, 1::2, ::-1].copy()
    return sides


def run_errors(law: str, tests: int, runs: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Errors of whole runs, one after another, in noise units, shape (tests, runs).

    What the laws say of launches holds for runs here; `ar 0.6` has that correlation of neighbours.
    """
    errors = _in_turn(law, tests, runs, rng)
    name, _, correlation = law.partition(" ")
    if name == CORRELATED:
        _correlate(errors, float(correlation or CORRELATION))
    return errors


def _in_turn(law: str, tests: int, launches: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Errors of independent launches on a machine that may drift, shape (tests, launches)."""
    errors = (
        rng.standard_t(3, (tests, launches)) / np.sqrt(3)  # unit variance
        if law == "t3"
        else rng.standard_normal((tests, launches))
    )
    if law == "drift":
        errors -= 3 * np.arange(launches) / 24
    elif law == "walk":
        errors += np.cumsum(rng.normal(0, 0.5, (tests, launches)), axis=1)
    return errors


def _correlate(errors: NDArray[np.float64], correlation: float) -> None:
    """Give neighbours along the second axis this correlation, in place."""
    for place in range(1, errors.shape[1]):
        fresh = np.sqrt(1 - correlation**2) * errors[:, place]
        errors[:, place] = correlation * errors[:, place - 1] + fresh


class Machine:
    """Throughputs of launches, one after another, under one of the independent laws."""

    def __init__(self, law: str, noise: float, rng: random.Random) -> None:
        self.law, self.noise, self.rng = law, noise, rng
        self.launches = 0
        self.walked = 0.0

    def launch(self, speed: float) -> float:
        """Throughput of one launch of a program of true speed `speed`."""
        error = self.rng.gauss(0, 1)
        if self.law == "t3":
            chi = sum(self.rng.gauss(0, 1) ** 2 for _ in range(3))
            error /= math.sqrt(chi / 3) * math.sqrt(3)  # unit variance
        elif self.law == "drift":
            error -= 3 * self.launches / 24
        elif self.law == "walk":
            self.walked += self.rng.gauss(0, 0.5)
            error += self.walked
        self.launches += 1
        return speed * math.exp(self.noise * error)
