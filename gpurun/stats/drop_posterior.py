"""The commit that made the program slower, by Bayes' rule over paired measurements.

The hypotheses are "the drop came with commit k", for every k of the range, and "there is none".
Under k a commit before k runs as fast as GOOD, and one from k on is slower by an unknown size; the
log ratio of a pair scatters around that by Student's t with 4 degrees of freedom (one disturbed
launch must not decide) and an unknown scale. Size and scale are summed over grids. The drop in a
pair of two commits inside the range may differ in size from the drop in pairs with GOOD. It does if
several drops lie in the range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gpurun.stats.level_shifts import log_sum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float64]
    Mask: TypeAlias = NDArray[np.bool_]

FREEDOM = 4.0
"""Degrees of freedom of the scatter of a pair."""
LARGEST = 3.0
"""Usual end of the grid of drops, a log ratio: 95 % of the throughput."""
SIZES, FINE_SIZES = 24, 2000
SCALES = np.geomspace(0.003, 0.3, 12)
"""Scales of a pair's log ratio; the smallest is the floor of 0.2 % for a launch, times √2."""
USUAL_SCALE, SPREAD_OF_SCALE = 0.02, 1.0
"""A priori the scale is log-normal: a launch scatters by 0.5 % to 4 % in two cases of three."""


@dataclass(frozen=True)
class Reading:
    """One pair: place `of` against the earlier place `against`; 0 is GOOD, the last one BAD.

    `slowdown` is ln(throughput of `against` / throughput of `of`): positive where `of` is slower.
    """

    of: int
    against: int
    slowdown: float


@dataclass(frozen=True)
class Further:
    """A second drop: its probability, the probability of each place, and its expected log ratio."""

    probability: float
    places: Array
    size: float


class Posterior:
    """The posterior of the places 1, 2, ... of a range, from `readings`.

    `prior` holds the weight of each place; none of them is as likely as any. `smallest` is the
    smallest drop that counts, a log ratio.
    """

    def __init__(self, prior: Sequence[float], readings: Sequence[Reading], smallest: float):
        self._count = len(prior)
        self._of = np.array([r.of for r in readings], dtype=np.int64)
        self._against = np.array([r.against for r in readings], dtype=np.int64)
        self._slowdowns = np.array([r.slowdown for r in readings], dtype=np.float64)
        self._smallest = smallest
        self._sizes = self._grid()
        self._prior = np.array(prior) / sum(prior)
        off = np.log(SCALES / USUAL_SCALE) / SPREAD_OF_SCALE
        self._scale_prior = -0.5 * off**2 - np.log(np.exp(-0.5 * off**2).sum())
        # Places that the same readings cross are one cell: nothing tells them apart.
        place = np.arange(1, self._count + 2)
        bound = np.searchsorted(np.unique([self._of, self._against]), place)
        _, first, self._cell = np.unique(bound, return_index=True, return_inverse=True)
        self._crossed: Mask = self._crossing(place[first])
        self._none = _log_density(self._slowdowns, np.zeros(1))[:, 0]  # reading × scale
        self._some = _log_density(self._slowdowns, self._sizes)  # reading × size × scale
        log_prior = np.log(np.append(self._prior, 1.0) / 2)
        self._joint = self._evidence(self._of > 0) + self._scale_prior + log_prior[:, None]
        self._weights = _normalised(self._joint)

    @property
    def places(self) -> Array:
        """The probability that the drop came with place 1, 2, ...; the last one: there is none."""
        by_place: Array = self._weights.sum(axis=1)
        return by_place

    @property
    def noise(self) -> float:
        """Expected scatter of a launch, a fraction of its throughput."""
        return float(self._weights.sum(axis=0) @ SCALES / np.sqrt(2))

    def own(self, place: int) -> float:
        """The probability that `place` is slower than the place before, by their own pairs alone.

        All other pairs tell only how large the scatter is; without any pair of their own it is 0.5.
        """
        own, rest = self._apart(place)
        slower = _log_mean(self._some[own].sum(axis=0), axis=0) + rest
        same = self._none[own].sum(axis=0) + rest
        return float(1 / (1 + np.exp(log_sum(same) - log_sum(slower))))

    def jump(self, place: int) -> tuple[float, float, float]:
        """The drop of `place` against the place before, if there is one: log ratios.

        The median and the ends of the 95 % interval, by the pairs of these two alone.
        """
        own, rest = self._apart(place)
        sizes = np.geomspace(self._smallest, self._sizes[-1], FINE_SIZES)
        density = _log_density(self._slowdowns[own], sizes).sum(axis=0)
        weights = _normalised(density + rest).sum(axis=1)
        below = np.cumsum(weights) - weights / 2
        low, middle, high = np.interp([0.025, 0.5, 0.975], below, sizes)
        return float(middle), float(low), float(high)

    def further(self, place: int) -> Further:
        """Judge, given a drop at `place`, whether there is one more elsewhere in the range."""
        prior = np.append(np.where(np.arange(1, self._count + 1) == place, 0.0, self._prior), 0.0)
        if not prior.any():
            return Further(0.0, prior[:-1], 0.0)
        prior /= prior.sum()
        by_cell = np.bincount(self._cell, prior)
        first = self._crossing(np.array([place]))[0]
        both = _log_density(self._slowdowns, np.add.outer(self._sizes, self._sizes).ravel())
        both = both.reshape(len(first), SIZES, SIZES, len(SCALES))
        alone = np.where(first[:, None, None], self._some, self._none[:, None])[:, :, None]
        more = np.where(first[:, None, None, None], both, self._some[:, None])
        gain = self._crossed.astype(float) @ (more - alone).reshape(len(first), -1)
        total = gain.reshape(-1, SIZES, SIZES, len(SCALES)) + alone.sum(axis=0) - np.log(SIZES)
        with np.errstate(divide="ignore"):
            total += self._scale_prior + np.log(by_cell)[:, None, None, None]
        odds = log_sum(total) - log_sum(alone.sum(axis=0) + self._scale_prior)
        weights = _normalised(total)
        share = prior / np.where(by_cell > 0, by_cell, 1.0)[self._cell]
        return Further(
            float(1 / (1 + np.exp(-odds))),
            (weights.sum(axis=(1, 2, 3))[self._cell] * share)[:-1],
            float(weights.sum(axis=(0, 1, 3)) @ self._sizes),
        )

    def _grid(self) -> Array:
        """Drops in equal ratios, one of them just what BAD shows against GOOD.

        Where that fell between two of the grid, a large drop would look like noise.
        """
        seen = self._slowdowns[(self._of == self._count) & (self._against == 0)]
        drop = float(np.median(seen)) if len(seen) else 0.0
        ratio = (max(LARGEST, 1.5 * drop) / self._smallest) ** (1 / (SIZES - 1))
        shift = np.log(max(drop / self._smallest, 1.0)) / np.log(ratio) % 1.0
        grid: Array = self._smallest * ratio ** (np.arange(SIZES) + shift)
        return grid

    def _crossing(self, places: NDArray[np.int64]) -> Mask:
        """By place and reading: whether the reading holds one side of the place to the other."""
        crossing: Mask = (self._against < places[:, None]) & (places[:, None] <= self._of)
        return crossing

    def _evidence(self, chosen: Mask) -> Array:
        """Log-likelihood of the chosen readings by hypothesis and scale, sizes summed out."""
        total = np.zeros((len(self._crossed), len(SCALES)))
        for part in (chosen & (self._against == 0), chosen & (self._against > 0)):
            none = self._none[part]
            if not len(none):
                continue
            gain = (self._some[part] - none[:, None]).reshape(len(none), -1)
            gain = self._crossed[:, part].astype(float) @ gain
            total += _log_mean(gain.reshape(-1, SIZES, len(SCALES)), axis=1) + none.sum(axis=0)
        by_place: Array = total[self._cell]
        return by_place

    def _apart(self, place: int) -> tuple[Mask, Array]:
        """The pairs of `place` and the one before; what the rest say of the scale, given a drop."""
        own: Mask = (self._of == place) & (self._against == place - 1)
        return own, self._evidence(~own)[place - 1] + self._scale_prior


def _log_density(slowdowns: Array, means: Array) -> Array:
    """Log-density of each reading by mean and scale, but for a constant."""
    off = (slowdowns[:, None, None] - means[:, None]) / SCALES
    density: Array = -(FREEDOM + 1) / 2 * np.log1p(off**2 / FREEDOM) - np.log(SCALES)
    return density


def _log_mean(values: Array, axis: int) -> Array:
    mean: Array = log_sum(values, axis) - np.log(values.shape[axis])
    return mean


def _normalised(log_weights: Array) -> Array:
    weights = np.exp(log_weights - log_weights.max())
    normalised: Array = weights / weights.sum()
    return normalised
