"""A distance between two launches, and its name."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


class Kind(enum.Enum):
    """What is compared. Each kind is a row of the table (`sameness_table`)."""

    FINITE = "finite"
    SETTINGS = "settings"
    ORDER = "order"
    SHUFFLES = "shuffles"
    SAMPLES = "samples"
    INPUTS = "inputs"
    FIRST_LOSS = "first loss"
    DIRECTIONS = "gradient directions"
    GRADIENTS = "gradient sizes"
    UPDATES = "update sizes"
    SIDE_UPDATES = "side updates"
    FORM = "output form"
    OUTPUTS = "outputs"
    DECISIONS = "output decisions"
    EVALUATIONS = "evaluations"
    EVALUATED_DECISIONS = "evaluation decisions"
    CURVE = "loss curve"
    RUNAWAY = "runaway"
    SIDES = "loss curves of two commits"


@dataclass(frozen=True)
class Name:
    """A kind, and a place in it: a parameter, a tensor, a part of the curve; "" is the whole."""

    kind: Kind
    place: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.place}" if self.place else self.kind.value


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


Distances = dict[Name, Distance]

REPEATS, ROUNDING, SEEDS, STILL = "repeats", "rounding", "other seeds", "dropout off"
"""Launches that a verdict rests on: of the script as it is, one that only rounds, under other
seeds, and those whose model draws no random numbers."""
CHANCE = "the scatter of steps"
"""The floor of a mean of steps that scatter: see `Distance.error`."""


@dataclass(frozen=True)
class Floor:
    """The largest distance of launches that are the same by construction, and what showed it."""

    value: float
    source: str


Floors = dict[Name, Floor]


def exact(kind: Kind, place: str, reason: str | None) -> Distances:
    """A distance of things that are equal or not: 0, or infinity for this reason."""
    return {Name(kind, place): Distance(0.0 if reason is None else math.inf, reason or "")}


def relative(apart: float, size: float) -> float:
    """`apart` as a fraction of `size`; 0 if nothing is apart, infinity if there is no size."""
    if not apart:
        return 0.0
    return apart / size if size else math.inf
