"""Evidence for level shifts, and for a line, in a series whose noise is autocorrelated.

The noise is a first-order autoregressive process beside independent noise. How strong either is,
and how slowly the first forgets (not at all up to nearly a random walk), is summed over a grid; the
level, the scale of the noise and the heights of shifts are integrated in closed form (normal
linear model, conjugate priors). So a series that wanders is judged by noise that wanders, and a
shift counts only where it is more sudden than that noise. Evidence is the natural logarithm of a
Bayes factor.

Outliers: each noise model turns the series into innovations that should be independent. Before a
set of shifts is judged, its residuals are clipped at `CLIP` robust deviations. So one disturbed
launch is no shift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gpurun.stats.descriptive import SD_FLOOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]
    Places: TypeAlias = tuple[int, ...]

DECAYS = (0.3, 0.6, 0.8, 0.9, 0.97, 0.995)
"""Correlation of the autoregressive part between neighbours."""
SHARES = (0.15, 0.5, 0.85, 1.0)
"""Part of the variance that it has."""
SPREAD = 4.0
"""A priori the height of a shift is normal with so many standard deviations of the noise."""
CLIP = 3.0
LONGEST_BUMP = 60
"""Most points between two shifts that are looked for together."""


@dataclass(frozen=True)
class Noises:
    """The noise models of the grid, for a shape of series; axes: model, observation, column.

    Column t is 1 from observation t on; column 0 is the level, the others are shifts. The last
    column rises from 0 to 1 over the series: the line.
    """

    whiten: Array
    columns: Array
    """The columns, whitened."""
    gram: Array
    """Products of the columns with each other, the prior of the heights included."""
    log_scale: Array


@dataclass(frozen=True)
class Left:
    """The rest of the columns and the series once some columns are accounted for."""

    gram: Array
    cross: Array
    square: Array
    log_scale: Array
    freedom: int

    def without(self, column: int) -> Left:
        """With one more column accounted for."""
        pivot, row = self.gram[:, column, column], self.gram[:, column]
        spread = 1.0 if column == 0 else SPREAD**2
        return Left(
            self.gram - row[:, :, None] * (row / pivot[:, None])[:, None, :],
            self.cross - row * (self.cross[:, column] / pivot)[:, None],
            self.square - self.cross[:, column] ** 2 / pivot,
            self.log_scale - 0.5 * np.log(pivot * spread),
            self.freedom,
        )

    def evidence(self, explained: Array, determinant: Array) -> Array:
        """Log marginal likelihood where columns explain so much more: model × candidate."""
        # One observation more: a noise that is believed in beside what is seen.
        square = np.maximum(self.square[:, None] - explained, 0) + SD_FLOOR**2
        log_scale = self.log_scale[:, None] - 0.5 * np.log(determinant)
        evidence: Array = log_scale - (self.freedom + 1) / 2 * np.log(square)
        return evidence

    def as_it_is(self) -> Array:
        """Log marginal likelihood of each noise model with no further shift."""
        return self.evidence(np.zeros((len(self.square), 1)), np.ones((1, 1)))[:, 0]

    def one(self, at: NDArray[np.int64]) -> Array:
        """Evidence for one more shift at each of the places `at`."""
        pivot = self.gram[:, at, at]
        evidence = self.evidence(self.cross[:, at] ** 2 / pivot, pivot * SPREAD**2)
        return log_sum(evidence, 0) - log_sum(self.as_it_is(), 0)

    def two(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> Array:
        """Evidence for two more shifts at once, which may undo each other."""
        a, b = self.gram[:, first, first], self.gram[:, second, second]
        both = self.gram[:, first, second]
        x, y = self.cross[:, first], self.cross[:, second]
        determinant = a * b - both**2
        explained = (x**2 * b - 2 * x * y * both + y**2 * a) / determinant
        evidence = self.evidence(explained, determinant * SPREAD**4)
        return log_sum(evidence, 0) - log_sum(self.as_it_is(), 0)

    def height(self, at: int) -> tuple[float, float]:
        """Height of a shift at `at` and its standard error, over all noise models."""
        pivot = self.gram[:, at, at]
        weights = self.evidence((self.cross[:, at] ** 2 / pivot)[:, None], pivot[:, None])[:, 0]
        weights = np.exp(weights - log_sum(weights, 0))
        plain = pivot - SPREAD**-2  # without the prior, which would shrink it
        heights = self.cross[:, at] / plain
        square = np.maximum(self.square - self.cross[:, at] ** 2 / plain, 0) + SD_FLOOR**2
        mean = float(weights @ heights)
        variance = weights @ (square / self.freedom / plain + (heights - mean) ** 2)
        return mean, float(np.sqrt(variance))


class ShiftSeries:
    """`values` at `positions` along the axis of correlation, each the mean of `counts` values."""

    def __init__(
        self, values: Sequence[float], positions: Sequence[float], counts: Sequence[int]
    ) -> None:
        self.length = self.line = len(values)
        """`line`: the place of the column that is one."""
        self._noises = noises(tuple(positions), tuple(counts))
        self._white: Array = self._noises.whiten @ np.array(values)

    def left(self, known: Places, fitted: Places | None) -> Left:
        """With the level and shifts at `known` accounted for.

        Outliers are those from the fit of shifts at `fitted`; None leaves them as they are.
        """
        white = self._white if fitted is None else self._pulled_in(fitted)
        columns = self._noises.columns
        left = Left(
            self._noises.gram,
            _products(columns, white),
            (white**2).sum(axis=1),
            self._noises.log_scale,
            self.length - 1 - len(known),
        )
        for column in (0, *known):
            left = left.without(column)
        return left

    def _pulled_in(self, fitted: Places) -> Array:
        chosen = [0, *fitted]
        columns = self._noises.columns[:, :, chosen]
        gram = self._noises.gram[:, chosen][:, :, chosen]
        white = self._white
        for _ in range(3):  # what is pulled in moves the fit, and that moves what is pulled in
            heights = np.linalg.solve(gram, _products(columns, white)[:, :, None])
            fit: Array = (columns @ heights)[:, :, 0]
            off = self._white - fit
            limit = CLIP * 1.4826 * np.median(np.abs(off), axis=1)[:, None]
            white = fit + np.clip(off, -limit, limit)
        return white


@lru_cache(maxsize=2)
def noises(positions: tuple[float, ...], counts: tuple[int, ...]) -> Noises:
    """The grid of noise models for a shape of series, which several metrics share."""
    at = np.array(positions)
    apart = np.abs(at[:, None] - at)
    alone = np.diag(1 / np.array(counts))
    models = [alone]
    for decay in DECAYS:
        models += [share * decay**apart + (1 - share) * alone for share in SHARES]
    # two values measured at one position must not make the matrix singular
    roots = np.linalg.cholesky(np.array(models) + 1e-9 * np.eye(len(at)))
    whiten = np.linalg.inv(roots)
    shifts = np.cumsum(whiten[:, :, ::-1], axis=2)[:, :, ::-1]
    line = whiten @ np.linspace(0.0, 1.0, len(at))
    columns = np.concatenate([shifts, line[:, :, None]], axis=2)
    prior = np.full(len(at) + 1, SPREAD**-2)
    prior[0] = 0.0
    gram = columns.transpose(0, 2, 1) @ columns + np.diag(prior)
    log_scale = -np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
    return Noises(whiten, columns, gram, log_scale)


def log_sum(values: Array, axis: int | None = None) -> Array:
    """The logarithm of the sum of exponentials."""
    top = values.max(axis=axis, keepdims=True)
    summed: Array = np.log(np.exp(values - top).sum(axis=axis)) + top.squeeze(axis)
    return summed


def _products(columns: Array, series: Array) -> Array:
    products: Array = (columns.transpose(0, 2, 1) @ series[:, :, None])[:, :, 0]
    return products
