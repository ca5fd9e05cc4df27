"""The verdict: the same if the largest of all scaled distances is at most 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.knobs.api import Effect
from gpurun.same.distances import Pair, compare
from gpurun.same.floors import (
    ENOUGH_SEEDS,
    FAR_ENOUGH,
    ROUNDING,
    SEEDS,
    Baselines,
    Floor,
    floors,
)
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.named_distance import Distance, Distances, Kind, Name
from gpurun.same.output_distances import compared_calls, unreadable
from gpurun.same.sameness_table import (
    BY_PLACE,
    CURVES,
    EXACT,
    LEAST_SHARE,
    TABLE,
    WITHOUT_UNIT,
    scaled,
    shown,
    too_high,
)

PIPELINE_ONLY = "without that only pipeline changes are applied"
OF_TRAINING = frozenset({Kind.FINITE, Kind.SAMPLES, Kind.VARIETY, Kind.RUNAWAY})
"""All that a change of the training (batch size, learning rate) must leave the same."""
FROM_SAMPLES = frozenset({Kind.ORDER, Kind.SHUFFLES, Kind.SAMPLES, Kind.LIKENESS, Kind.FED})
"""Kinds that show which samples reach the model."""


@dataclass(frozen=True)
class Measured:
    """One row of the table of distances that a user sees."""

    name: Name
    distance: Distance
    floor: Floor | None
    bound: float
    """The largest distance that is the same."""
    noise: float
    """The part of it that launches of the same training show."""

    @property
    def scaled(self) -> float:
        """The distance in units of its bound."""
        return scaled(self.distance, self.bound)

    @property
    def compared(self) -> bool:
        """False if it is beyond its least value and its floor is above the ceiling."""
        return self.scaled <= 1 or not too_high(self.name, self.floor)

    @property
    def reason(self) -> str:
        """What is wrong, and how much would be allowed."""
        kind = self.name.kind
        if not self.compared and self.floor is not None:
            moved = shown(kind, self.floor.value)
            return f"{kind.value} not compared: off by {moved} from {self.floor.source} alone"
        said = self.distance.said
        told = math.isfinite(self.distance.value) and self.bound and kind not in WITHOUT_UNIT
        if TABLE[kind] == EXACT or not told:
            return said
        return f"{said} (allowed {shown(kind, self.bound)})"


@dataclass(frozen=True)
class Sameness:
    """What two sides' launches have in common. `table`: every distance, the largest scaled first.

    `not_compared`: kinds whose floor is above the ceiling, with the reason; a change that rounds is
    then not called the same. `missing`: launches that might raise a floor (`ROUNDING`, `SEEDS`).
    """

    table: tuple[Measured, ...]
    reasons: tuple[str, ...]
    not_compared: tuple[str, ...] = ()
    missing: frozenset[str] = frozenset()
    outputs_unseen: str | None = None
    """Why no output was compared, of a script that only infers."""

    @property
    def same(self) -> bool:
        """True if nothing speaks against it."""
        return not self.reasons

    def worst(self, *kinds: Kind) -> Measured | None:
        """The distance of these kinds that sticks out most, of those compared; None if none is."""
        return next((m for m in self.table if m.name.kind in kinds and m.compared), None)

    @property
    def failing(self) -> frozenset[Kind]:
        """The kinds of which a distance is too large."""
        return frozenset(m.name.kind for m in self.table if _fails(m))

    @property
    def other_samples(self) -> bool:
        """True if other samples reach the model, or in another order."""
        return bool(self.failing & FROM_SAMPLES)


def judge(
    baselines: Sequence[LaunchAudit], candidates: Sequence[LaunchAudit], effect: Effect
) -> Sameness:
    """Compare a candidate's launches with those of the script as it is (some may only round)."""
    known = Baselines.of(baselines)
    rounds = effect is Effect.NUMERICS
    pairs = [_nearest(known, candidate, rounds) for candidate in candidates]
    drawn = any(pair.drawn for pair in pairs)
    steps = min((_shared_steps(known, c) for c in candidates), default=0)
    explained = floors(known, rounds=rounds, drawn=drawn, steps=steps)
    table = []
    for name, distance in _together(pairs).items():
        if effect is Effect.TRAINING and name.kind not in OF_TRAINING:
            continue
        if name.kind is Kind.RUNAWAY and effect is not Effect.TRAINING:
            continue
        floor = explained.get(name)
        row = TABLE[name.kind]
        bound, noise = (f(distance, floor, drawn=drawn) for f in (row.bound, row.noise))
        table.append(Measured(name, distance, floor, bound, noise))
    table.sort(key=lambda measured: measured.scaled, reverse=True)
    table = [m for m in table if m.name.kind is not Kind.LIKENESS or m.floor is not None]
    not_compared = _not_compared(table)
    reasons = _reasons(table)
    unseen = _outputs_unseen(known, candidates)
    if rounds:
        unsure = list(not_compared)
        if any(b.never_finite for b in known.plain):
            unsure.append("losses not compared: the script's own is not finite")
        if unseen is not None:
            unsure.append(f"outputs not compared: {unseen}")
        reasons += [f"{said}; {PIPELINE_ONLY}" for said in unsure]
    missing = _missing(table, known, rounds=rounds, drawn=drawn)
    return Sameness(tuple(table), tuple(reasons), tuple(not_compared), missing, unseen)


# -- distances of a side ---------------------------------------------------------------------------


def _nearest(known: Baselines, candidate: LaunchAudit, rounds: bool) -> Pair:
    """The candidate against each repeat of its seed that goes as far: of each kind the nearest."""
    partners = known.partners(candidate.seed)
    steps = _shared_steps(known, candidate)
    far = [p for p in partners if min(len(p.losses), len(candidate.losses)) >= FAR_ENOUGH * steps]
    pairs = [compare(candidate, partner, rounds=rounds) for partner in far or partners]
    drawn = all(pair.drawn for pair in pairs)
    pairs = [pair for pair in pairs if pair.drawn is drawn]
    found: Distances = {}
    for kind in Kind:
        sides = [{n: d for n, d in p.distances.items() if n.kind is kind} for p in pairs]
        nearest = sorted((side for side in sides if side), key=_largest)
        found |= nearest[0] if nearest else {}
    return Pair(found, drawn)


def _largest(distances: Distances) -> float:
    return max(distance.size for distance in distances.values())


def _shared_steps(known: Baselines, candidate: LaunchAudit) -> int:
    longest = max((len(p.losses) for p in known.partners(candidate.seed)), default=0)
    return min(len(candidate.losses), longest)


def _together(pairs: Sequence[Pair]) -> Distances:
    """The furthest of the candidate's launches; curves are averaged, for a bias is shared."""
    found: Distances = {}
    for name in dict.fromkeys(name for pair in pairs for name in pair.distances):
        each = [pair.distances[name] for pair in pairs if name in pair.distances]
        found[name] = max(each, key=lambda distance: distance.size)
        if name.kind in CURVES:
            value = math.fsum(d.value for d in each) / len(each)
            error = math.sqrt(math.fsum(d.error**2 for d in each)) / len(each)
            found[name] = Distance(value, f"the loss deviates by {abs(value):.1%}", error)
    return found


# -- what follows ----------------------------------------------------------------------------------


def _fails(measured: Measured) -> bool:
    return measured.scaled > 1 and measured.compared


def _reasons(table: Sequence[Measured]) -> list[str]:
    """The worst distance of each kind that is too large."""
    worst: dict[Kind, str] = {}
    for measured in table:
        if _fails(measured):
            worst.setdefault(measured.name.kind, measured.reason)
    return list(worst.values())


def _not_compared(table: Sequence[Measured]) -> list[str]:
    found: dict[Kind, str] = {}
    for measured in table:
        if not measured.compared:
            found.setdefault(measured.name.kind, measured.reason)
    seen = {m.name.kind for m in table if m.compared}
    return [said for kind, said in found.items() if kind not in BY_PLACE or kind not in seen]


def _outputs_unseen(known: Baselines, candidates: Sequence[LaunchAudit]) -> str | None:
    """Why no output of a script that only infers is compared; None if some are, or if it trains."""
    if not candidates or not all(c.forward_only for c in candidates):
        return None
    unseen = incomparable(known)
    if unseen is not None:
        return unseen
    for candidate in candidates:
        alike, of = max(compared_calls(candidate, p) for p in known.partners(candidate.seed))
        if alike < LEAST_SHARE * of:
            return f"{alike} of {of} calls only could be compared"
    return None


def _missing(
    table: Sequence[Measured], known: Baselines, *, rounds: bool, drawn: bool
) -> frozenset[str]:
    """The launches that might raise the floor of each distance which is too large."""
    failing = [m for m in table if _fails(m)]
    if not failing or not all(_may_be_explained(m) for m in failing):
        return frozenset()
    seeds = drawn and known.seeds < ENOUGH_SEEDS
    wanted = {ROUNDING: rounds, SEEDS: seeds}
    return frozenset(source for source, wanted_too in wanted.items() if wanted_too)


def _may_be_explained(measured: Measured) -> bool:
    """True if a higher floor may explain the distance, or leave one place of many uncompared."""
    row = TABLE[measured.name.kind]
    within = measured.distance.size <= max(row.ceiling, measured.bound)
    return row != EXACT and (within or measured.name.kind in BY_PLACE)


def incomparable(known: Baselines) -> str | None:
    """Why nothing of a script that only infers can be compared; None if it can, or if it trains."""
    if not known.plain or not all(b.forward_only for b in known.plain):
        return None
    unseen = next((said for b in known.plain if (said := unreadable(b)) is not None), None)
    if unseen is not None:
        return unseen
    repeats = floors(known, rounds=False, drawn=False, steps=0)
    if any(too_high(n, f) for n, f in repeats.items() if n.kind is Kind.INPUTS and n.place):
        return "repeats of the script give its model other inputs"
    random = [f for n, f in repeats.items() if n.kind is Kind.OUTPUTS and too_high(n, f)]
    if random:
        apart = min(floor.value for floor in random)
        return f"they are random: repeats of the script differ by {apart:.1%}"
    return None
