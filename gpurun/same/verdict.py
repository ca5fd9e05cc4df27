"""The verdict: the same if the largest of all scaled distances is at most 1."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpurun.knobs.api import Effect
from gpurun.same.distances import Baselines, Pair, compare, floors
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.measured_distance import (
    REPEATS,
    ROUNDING,
    SEEDS,
    STILL,
    Distance,
    Distances,
    Measured,
    measure,
)
from gpurun.same.output_distances import compared_calls, unreadable
from gpurun.same.sameness_table import (
    BY_PLACE,
    FAR_ENOUGH,
    LEAST_SHARE,
    OF_OUTPUTS,
    OF_TRAINING,
    Kind,
)
from gpurun.same.sample_distances import other_workers

PIPELINE_ONLY = "without that only pipeline changes are applied"
NO_WORKERS = "without that no other processes load them"


@dataclass(frozen=True)
class Sameness:
    """What two sides' launches have in common. `table`: every distance, the largest scaled first.

    `missing`: launches that might raise a floor (`REPEATS`, `ROUNDING`, `SEEDS`), or show what
    random numbers of the model hide (`STILL`).
    """

    table: tuple[Measured, ...]
    reasons: tuple[str, ...]
    missing: frozenset[str] = frozenset()
    outputs_unseen: str | None = None
    """Why no output was compared, of a script that only infers."""

    @property
    def same(self) -> bool:
        """True if nothing speaks against it."""
        return not self.reasons

    def worst(self, kind: Kind) -> Measured | None:
        """The distance of this kind that sticks out most; None if its floors are too high."""
        told = (m for m in self.table if m.name.kind is kind and (m.compared or not m.too_high))
        return next(told, None)

    @property
    def failing(self) -> frozenset[Kind]:
        """The kinds of which a distance is too large."""
        return frozenset(m.name.kind for m in self.table if m.fails)


def judge(
    baselines: Sequence[LaunchAudit], candidates: Sequence[LaunchAudit], effect: Effect
) -> Sameness:
    """Compare a candidate's launches with those of the script as it is (some may only round)."""
    known = Baselines.of(baselines)
    rounds = effect is Effect.NUMERICS
    pairs = [_nearest(known, candidate, rounds) for candidate in candidates]
    drawn = any(pair.later for pair in pairs)
    steps = min((known.shared_steps(c) for c in candidates if not c.still), default=0)
    explained = floors(known, rounds=rounds, drawn=drawn, steps=steps)
    random = incomparable(known.plain)
    kinds = OF_TRAINING if effect is Effect.TRAINING else frozenset(Kind) - {Kind.RUNAWAY}
    kinds -= OF_OUTPUTS if random else set()
    table = sorted(
        (
            measure(name, distance, explained.get(name), few=known.few_repeats)
            for name, distance in _together(pairs).items()
            if name.kind in kinds
        ),
        key=lambda measured: measured.scaled,
        reverse=True,
    )
    unseen = random or _calls_unseen(known, candidates)
    reasons = _worst_of_each_kind(m for m in table if m.fails)
    reasons += _unsure(table, known, unseen) if rounds else []
    if any(other_workers(c, p) for c in candidates for p in known.partners(c)):
        unknown = (m for m in table if m.name.kind is Kind.SAMPLES and not m.compared)
        reasons += [f"{said}; {NO_WORKERS}" for said in _worst_of_each_kind(unknown)]
    missing = _missing(table, known, rounds=rounds, drawn=drawn)
    # does a launch show gradients and updates under equal random numbers of the model?
    hidden = [p.masks for c, p in zip(candidates, pairs, strict=True) if c.still or c.draws]
    if rounds and not reasons and hidden and all(hidden):
        missing |= {STILL}
    return Sameness(tuple(table), tuple(reasons), missing, unseen)


def _nearest(known: Baselines, candidate: LaunchAudit, rounds: bool) -> Pair:
    """The candidate against each repeat of its seed that goes as far: of each kind the nearest."""
    partners = known.partners(candidate)
    steps = FAR_ENOUGH * known.shared_steps(candidate)
    far = [p for p in partners if min(len(p.losses), len(candidate.losses)) >= steps]
    pairs = [compare(candidate, partner, rounds=rounds) for partner in far or partners]
    draws = min(((p.masks, p.later) for p in pairs), default=(candidate.still, False))
    pairs = [pair for pair in pairs if (pair.masks, pair.later) == draws]
    found: Distances = {}
    for kind in Kind:
        sides = [{n: d for n, d in p.distances.items() if n.kind is kind} for p in pairs]
        nearest = sorted((side for side in sides if side), key=_largest)
        found |= nearest[0] if nearest else {}
    return Pair(found, *draws)


def _largest(distances: Distances) -> float:
    return max(distance.size for distance in distances.values())


def _together(pairs: Sequence[Pair]) -> Distances:
    """The furthest of the candidate's launches; curves are averaged, for a bias is shared."""
    found: Distances = {}
    for name in dict.fromkeys(name for pair in pairs for name in pair.distances):
        each = [pair.distances[name] for pair in pairs if name in pair.distances]
        found[name] = max(each, key=lambda distance: distance.size)
        if name.kind is Kind.CURVE:
            value = math.fsum(d.value for d in each) / len(each)
            error = math.sqrt(math.fsum(d.error**2 for d in each)) / len(each)
            found[name] = Distance(value, f"the loss deviates by {abs(value):.1%}", error)
    return found


def _worst_of_each_kind(table: Iterable[Measured]) -> list[str]:
    worst: dict[Kind, str] = {}
    for measured in table:
        worst.setdefault(measured.name.kind, measured.reason)
    return list(worst.values())


def _unsure(table: Sequence[Measured], known: Baselines, unseen: str | None) -> list[str]:
    """What could not be compared: a change that rounds is then not called the same."""
    found = [] if unseen is None else [f"outputs not compared: {unseen}"]
    if any(b.never_finite for b in known.plain):
        found.append("losses not compared: the script's own is not finite")
    enough = {m.name.kind for m in table if m.compared} & BY_PLACE
    told = (m for m in table if m.name.kind not in enough and not m.compared)
    whole = (m for m in told if m.name.kind is not Kind.CURVE or not m.name.place)
    return [f"{said}; {PIPELINE_ONLY}" for said in (*found, *_worst_of_each_kind(whole))]


def _missing(
    table: Sequence[Measured], known: Baselines, *, rounds: bool, drawn: bool
) -> frozenset[str]:
    """The launches that might raise the floor of each distance which is too large."""
    failing = [m for m in table if m.fails]
    for m in failing:  # a higher floor may explain it, or leave one place of many uncompared
        kind = m.name.kind
        within = m.distance.size <= max(kind.value.ceiling, m.bound)
        if not kind.value.least or not (within or kind in BY_PLACE):
            return frozenset()
    differ = any(m.floor and m.floor.source == REPEATS and m.floor.value for m in failing)
    unsure = rounds and any(m.too_few and not m.compared for m in table)
    wanted = {
        REPEATS: known.few_repeats and (differ or unsure),
        ROUNDING: rounds and bool(failing),
        SEEDS: drawn and known.few_seeds and any(m.name.kind is Kind.CURVE for m in failing),
    }
    return frozenset(source for source, asked in wanted.items() if asked)


def _calls_unseen(known: Baselines, candidates: Sequence[LaunchAudit]) -> str | None:
    """The reason why gpurun compared too few outputs of a script that only infers, or None."""
    for candidate in candidates if all(c.forward_only for c in candidates) else ():
        alike, of = max(compared_calls(candidate, p) for p in known.partners(candidate))
        if alike < LEAST_SHARE * of:
            return f"gpurun could compare only {alike} of {of} calls"
    return None


def incomparable(launches: Sequence[LaunchAudit]) -> str | None:
    """Why nothing of a script that only infers can be compared; None if it can, or if it trains."""
    known = Baselines.of(launches)
    if not known.plain or not all(b.forward_only for b in known.plain):
        return None
    unseen = next((said for b in known.plain if (said := unreadable(b)) is not None), None)
    if unseen is not None:
        return unseen
    repeats = floors(known, rounds=False, drawn=False, steps=0)
    random = {n: f.value for n, f in repeats.items() if f.value > n.kind.value.ceiling}
    if any(name.kind is Kind.INPUTS and name.place for name in random):
        return "repeats of the script give its model other inputs"
    apart = [value for name, value in random.items() if name.kind is Kind.OUTPUTS]
    return f"they are random: repeats of the script differ by {min(apart):.1%}" if apart else None
