"""A distance between two launches, its floor, and what the table makes of both."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpurun.same.sameness_table import (
    ENOUGH,
    FACTORS,
    SCATTER,
    SHARES,
    WITHOUT_UNIT,
    Kind,
)

REPEATS, ROUNDING, SEEDS, STILL = "repeats", "rounding", "other seeds", "dropout off"
"""Launches that a verdict rests on: of the script as it is, one that only rounds, under other
seeds, and those whose model draws no random numbers."""
CHANCE = "the scatter of steps"
"""The floor of a mean of steps that scatter: see `Distance.error`."""


@dataclass(frozen=True)
class Name:
    """A kind, and a place in it: a parameter, a tensor, a part of the curve; "" is the whole."""

    kind: Kind
    place: str = ""

    def __str__(self) -> str:
        label: str = self.kind.value.label
        return f"{label}: {self.place}" if self.place else label


@dataclass(frozen=True)
class Distance:
    """How far two launches are apart: 0 is the same, infinity can never be the same.

    `value` has a sign only where launches are averaged (the loss curve). `error`: its standard
    error, where the steps it is a mean of scatter.
    """

    value: float
    said: str
    """What a user reads if it is too large: "the first loss is 1.2 instead of 1"."""
    error: float = 0.0
    resolution: float = 0.0
    """The relative difference of neighbouring numbers of a tensor's type: the least that tells."""

    @property
    def size(self) -> float:
        """The distance without its sign."""
        return abs(self.value)


@dataclass(frozen=True)
class Floor:
    """The largest distance of launches that are the same by construction, and what showed it."""

    value: float
    source: str


Distances = dict[Name, Distance]
Floors = dict[Name, Floor]


def exact(kind: Kind, place: str, reason: str | None) -> Distances:
    """A distance of things that are equal or not: 0, or infinity for this reason."""
    return {Name(kind, place): Distance(0.0 if reason is None else math.inf, reason or "")}


def relative(apart: float, size: float) -> float:
    """`apart` as a fraction of `size`; 0 if nothing is apart, infinity if there is no size."""
    if not apart:
        return 0.0
    return apart / size if size else math.inf


@dataclass(frozen=True)
class Measured:
    """One row of the table of distances that a user sees.

    `bound`: the largest distance that is the same. `noise`: the part of it that launches of the
    same training explain. `too_high`: the floor is above its ceiling, and explains nothing.
    `too_few`: the bound rests on repeats, and there are too few of them.
    """

    name: Name
    distance: Distance
    floor: Floor | None
    bound: float
    noise: float
    too_high: bool = False
    too_few: bool = False

    @property
    def scaled(self) -> float:
        """The distance in units of its bound: the same up to 1."""
        if self.distance.size <= self.bound:
            return self.distance.size / self.bound if 0 < self.bound < math.inf else 0.0
        return relative(self.distance.size, self.bound)

    @property
    def fails(self) -> bool:
        """True if it is not the same. Beyond k × its floor it never is, however high that is."""
        return self.scaled > 1

    @property
    def compared(self) -> bool:
        """False where the floor explains nothing: neither the same nor another one.

        What is equal is the same, however far repeats are apart.
        """
        return self.fails or not self.distance.size or not (self.too_high or self.too_few)

    @property
    def reason(self) -> str:
        """What is wrong, and how much would be allowed."""
        kind, label = self.name.kind, self.name.kind.value.label
        if not self.compared and self.too_few:
            return f"{label} not compared: repeats differ, and {ENOUGH} of them are needed"
        if not self.compared and self.floor is not None:
            moved = shown(kind, self.floor.value) if math.isfinite(self.floor.value) else "all"
            return f"{label} not compared: off by {moved} from {self.floor.source} alone"
        told = math.isfinite(self.distance.value) and self.bound and kind not in WITHOUT_UNIT
        allowed = f" (allowed {shown(kind, self.bound)})" if told and kind.value.least else ""
        return self.distance.said + allowed


def measure(name: Name, distance: Distance, floor: Floor | None, *, few: bool = False) -> Measured:
    """`few`: repeats are too few for a floor."""
    row, scatter = name.kind.value, SCATTER * distance.error
    if scatter > (floor.value if floor else 0.0):
        floor = Floor(scatter, CHANCE)
    value, source = (floor.value, floor.source) if floor else (0.0, "")
    least, noise = max(row.least, distance.resolution), row.k * value
    too_high = value > row.ceiling
    if not too_high and source != CHANCE:
        noise = min(noise, row.ceiling)
    too_few = few and source == REPEATS and noise > least and not too_high
    told = 0.0 if too_high else noise
    return Measured(name, distance, floor, max(least, noise), told, too_high, too_few)


def shown(kind: Kind, value: float) -> str:
    """A bound, or a floor, as the reason of a rejection shows it."""
    if kind in FACTORS:
        return f"×{math.exp(value):.2f}"
    if kind in SHARES:
        return f"{1 - value * value:.2%}"
    if kind is Kind.DIRECTIONS:
        return f"cosine {1 - value * value / 2:.2f}"
    return f"{value:.2%}" if value < 0.01 else f"{value:.1%}"
