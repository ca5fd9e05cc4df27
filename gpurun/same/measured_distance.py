"""A distance beside its floor, with what the table makes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpurun.same.named_distance import CHANCE, REPEATS, Distance, Floor, Kind, Name
from gpurun.same.sameness_table import (
    ENOUGH,
    EXACT,
    FACTORS,
    SCATTER,
    SHARES,
    TABLE,
    WITHOUT_UNIT,
)


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
        return self.distance.size / self.bound if self.bound else math.inf

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
        kind = self.name.kind
        if not self.compared and self.too_few:
            return f"{kind.value} not compared: repeats differ, and {ENOUGH} of them are needed"
        if not self.compared and self.floor is not None:
            moved = shown(kind, self.floor.value) if math.isfinite(self.floor.value) else "all"
            return f"{kind.value} not compared: off by {moved} from {self.floor.source} alone"
        said = self.distance.said
        told = math.isfinite(self.distance.value) and self.bound and kind not in WITHOUT_UNIT
        if TABLE[kind] == EXACT or not told:
            return said
        return f"{said} (allowed {shown(kind, self.bound)})"


def measure(name: Name, distance: Distance, floor: Floor | None, *, few: bool = False) -> Measured:
    """`few`: repeats are too few for a floor."""
    row, scatter = TABLE[name.kind], SCATTER * distance.error
    if scatter > (0.0 if floor is None else floor.value):
        floor = Floor(scatter, CHANCE)
    value, ceiling = 0.0 if floor is None else floor.value, row.ceiling
    least = max(row.least, distance.resolution)
    noise = row.k * value
    if value <= ceiling and floor is not None and floor.source != CHANCE:
        noise = min(noise, ceiling)
    too_high = value > ceiling
    of_repeats = floor is not None and floor.source == REPEATS
    too_few = few and of_repeats and noise > least and not too_high
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
