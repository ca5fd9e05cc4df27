"""The floor of each distance: how far launches are apart that are the same by construction.

Repeats of the script as it is, a launch that only rounds (where the candidate may round), launches
under other seeds (of the loss curve, where random numbers were drawn anew).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from gpurun.same.distances import compare
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


@dataclass(frozen=True)
class Baselines:
    """The launches of the script as it is. `rounded`: those that only round. `still`: the one whose
    model draws no random numbers, if there is one."""

    plain: Sequence[LaunchAudit]
    rounded: Sequence[LaunchAudit] = ()
    still: Sequence[LaunchAudit] = ()

    @staticmethod
    def of(launches: Sequence[LaunchAudit]) -> Baselines:
        """The kinds told apart."""
        exact = [launch for launch in launches if not launch.rounded]
        return Baselines(
            [launch for launch in exact if not launch.still],
            [launch for launch in launches if launch.rounded],
            [launch for launch in exact if launch.still],
        )

    def partners(self, candidate: LaunchAudit) -> Sequence[LaunchAudit]:
        """The launches that a candidate is compared with: of its seed, or all if there is none."""
        if candidate.still:
            return self.still
        return [b for b in self.plain if b.seed == candidate.seed] or self.plain

    def longest(self, launch: LaunchAudit) -> LaunchAudit | None:
        """The launch with most steps that has the seed and the draws of this one."""
        same = (b for b in self.partners(launch) if b.seed == launch.seed)
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
        longest = max((len(p.losses) for p in self.partners(candidate)), default=0)
        return min(len(candidate.losses), longest)


def floors(known: Baselines, *, rounds: bool, drawn: bool, steps: int) -> Floors:
    """Floors for a candidate that may round, drew other random numbers, and shows so many steps."""
    found: Floors = {}
    for source, distances in _sources(known, rounds, drawn, steps):
        for name, distance in distances.items():
            if name not in found or distance.size > found[name].value:
                found[name] = Floor(distance.size, source)
    return found


def _sources(
    known: Baselines, rounds: bool, drawn: bool, steps: int
) -> Iterator[tuple[str, Distances]]:
    for a, b in combinations(known.plain, 2):
        if a.seed == b.seed:
            yield REPEATS, compare(b, a, rounds=rounds, steps=steps).distances
        elif drawn and not known.few_seeds:
            yield SEEDS, _of(compare(b, a, rounds=rounds, steps=steps).distances, Kind.CURVE)
    for draw in known.rounded if rounds else ():
        own = known.longest(draw)
        if own is not None:
            apart = compare(draw, own, rounds=True, steps=steps).distances
            far = min(len(own.losses), len(draw.losses)) >= FAR_ENOUGH * steps
            yield ROUNDING, {n: d for n, d in apart.items() if far or n.kind is not Kind.CURVE}


def _of(distances: Distances, kind: Kind) -> Distances:
    return {name: distance for name, distance in distances.items() if name.kind is kind}
