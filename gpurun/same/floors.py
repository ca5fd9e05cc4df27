"""The floor of each distance: how far launches are apart that are the same by construction.

Repeats of the script as it is, a launch that only rounds (where the candidate may round), launches
under other seeds (where random numbers were drawn anew).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from gpurun.same.distances import OtherDraws, compare
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.named_distance import (
    REPEATS,
    ROUNDING,
    SEEDS,
    Distances,
    Floor,
    Floors,
    Kind,
)
from gpurun.same.sameness_table import ENOUGH, FAR_ENOUGH

OF_SEEDS = frozenset({Kind.GRADIENTS, Kind.UPDATES, Kind.SIDE_UPDATES})
"""Kinds besides the curve whose floor launches under other seeds show: these have other weights,
samples and orders, and only what is a mean over many of them is alike."""


@dataclass(frozen=True)
class Baselines:
    """The launches of the script as it is. `rounded`: those that only round."""

    plain: Sequence[LaunchAudit]
    rounded: Sequence[LaunchAudit] = ()

    @staticmethod
    def of(launches: Sequence[LaunchAudit]) -> Baselines:
        """The two kinds told apart."""
        return Baselines(
            [launch for launch in launches if not launch.rounded],
            [launch for launch in launches if launch.rounded],
        )

    def partners(self, seed: int) -> Sequence[LaunchAudit]:
        """The plain launches of this seed; all where there is none."""
        return [b for b in self.plain if b.seed == seed] or self.plain

    def longest(self, seed: int) -> LaunchAudit | None:
        """The plain launch of this seed with most steps."""
        same = (b for b in self.plain if b.seed == seed)
        return max(same, key=lambda b: len(b.losses), default=None)

    @property
    def few_seeds(self) -> bool:
        """True if the script was launched under too few seeds to tell of their spread."""
        return len({b.seed for b in self.plain}) < ENOUGH

    @property
    def few_repeats(self) -> bool:
        """True if no seed has enough launches to tell how far repeats are apart."""
        return max(Counter(b.seed for b in self.plain).values(), default=0) < ENOUGH

    def shared_steps(self, candidate: LaunchAudit) -> int:
        """Steps that a candidate shares with the longest launch of its seed."""
        longest = max((len(p.losses) for p in self.partners(candidate.seed)), default=0)
        return min(len(candidate.losses), longest)


def floors(known: Baselines, *, rounds: bool, draws: OtherDraws, steps: int) -> Floors:
    """Floors for a candidate that may round, drew other random numbers, and shows so many steps."""
    found: Floors = {}
    for source, distances in _sources(known, rounds, draws, steps):
        for name, distance in distances.items():
            if name not in found or distance.size > found[name].value:
                found[name] = Floor(distance.size, source)
    return found


def _sources(
    known: Baselines, rounds: bool, draws: OtherDraws, steps: int
) -> Iterator[tuple[str, Distances]]:
    of_seeds = (OF_SEEDS if draws.masks else frozenset()) | {Kind.CURVE}
    for a, b in combinations(known.plain, 2):
        if a.seed == b.seed:
            yield REPEATS, compare(b, a, rounds=rounds, steps=steps).distances
        elif draws.later and not known.few_seeds:
            apart = compare(b, a, rounds=rounds, steps=steps).distances
            yield SEEDS, {name: d for name, d in apart.items() if name.kind in of_seeds}
    for draw in known.rounded if rounds else ():
        own = known.longest(draw.seed)
        if own is not None:
            apart = compare(draw, own, rounds=True, steps=steps).distances
            far = min(len(own.losses), len(draw.losses)) >= FAR_ENOUGH * steps
            yield ROUNDING, {n: d for n, d in apart.items() if far or n.kind is not Kind.CURVE}
