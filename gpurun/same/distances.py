"""Launches' audits -> all named distances between two of them, and the floor of each distance.

A floor is how far launches are apart that are the same by construction: repeats of the script as it
is, a launch that only rounds (where the candidate may round), launches under other seeds (of the
loss curve, where random numbers were drawn anew).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from gpurun.same.curve_distances import curve_distances, finite_distances, runaway_distances
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.measured_distance import REPEATS, ROUNDING, SEEDS, Distances, Floor, Floors
from gpurun.same.output_distances import output_distances
from gpurun.same.sameness_table import AFTER_STEPS, ENOUGH, FAR_ENOUGH, OF_STEPS, Kind
from gpurun.same.sample_distances import drawn_later, sample_distances
from gpurun.same.setting_distances import setting_distances
from gpurun.same.step_distances import model_drawn_apart, step_distances


@dataclass(frozen=True)
class Pair:
    """Two launches: their distances, and the random numbers that they drew otherwise.

    `masks`: those of the model (dropout) in the audited steps. `later`: any, in them or after them.
    """

    distances: Distances
    masks: bool = False
    later: bool = False


def compare(
    ours: LaunchAudit, theirs: LaunchAudit, *, rounds: bool, steps: int | None = None
) -> Pair:
    """All distances of `ours` from `theirs`.

    `rounds`: one of them may round otherwise, and kernels of another precision draw other masks of
    dropout. `steps`: compare only so many steps of the loss curve; None: all that both have.
    """
    steps_apart = step_distances(ours, theirs, rounds=rounds)
    masks = ours.seed != theirs.seed or (rounds and model_drawn_apart(ours, theirs, steps_apart))
    later = masks or drawn_later(ours, theirs)
    found = {
        **finite_distances(ours, theirs),
        **setting_distances(ours, theirs),
        **sample_distances(ours, theirs),
        **steps_apart,
        **output_distances(ours, theirs),
        **curve_distances(ours, theirs, steps),
        **runaway_distances(ours, theirs),
    }

    def told(kind: Kind, value: float) -> bool:
        if kind in OF_STEPS:
            return not masks or math.isinf(value)
        return not ours.still and not (later and kind in AFTER_STEPS)

    return Pair({n: d for n, d in found.items() if told(n.kind, d.value)}, masks, later)


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
        return Baselines(
            [launch for launch in launches if not launch.rounded and not launch.still],
            [launch for launch in launches if launch.rounded],
            [launch for launch in launches if launch.still and not launch.rounded],
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
    for source, ours, theirs in _sources(known, rounds, drawn):
        far = min(len(ours.losses), len(theirs.losses)) >= FAR_ENOUGH * steps
        for name, distance in compare(ours, theirs, rounds=rounds, steps=steps).distances.items():
            curve = name.kind is Kind.CURVE
            tells = curve if source == SEEDS else far or not curve or source != ROUNDING
            if tells and (name not in found or distance.size > found[name].value):
                found[name] = Floor(distance.size, source)
    return found


def _sources(
    known: Baselines, rounds: bool, drawn: bool
) -> Iterator[tuple[str, LaunchAudit, LaunchAudit]]:
    """Pairs of launches that are the same by construction, and what each pair shows."""
    for a, b in combinations(known.plain, 2):
        if a.seed == b.seed:
            yield REPEATS, b, a
        elif drawn and not known.few_seeds:
            yield SEEDS, b, a
    for draw in known.rounded if rounds else ():
        own = known.longest(draw)
        if own is not None:
            yield ROUNDING, draw, own
