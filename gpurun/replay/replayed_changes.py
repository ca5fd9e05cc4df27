"""What each change between two step graphs explains: it is taken out, and the steps replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpurun.records.diagnosis import ChangeKind, ProfileChange, ThingKind
from gpurun.replay.compared_names import Spent, Thing, profile_change, thing_of
from gpurun.replay.graph_changes import pauses_in, waiting, without_pauses, without_work
from gpurun.replay.replayed_steps import median_step_ms, own_times
from gpurun.replay.step_events import Edge
from gpurun.replay.step_graph import StepGraph
from gpurun.timeline.device_work import intervals
from gpurun.timeline.model import MODEL_PHASES, Timeline
from gpurun.timeline.runtime_calls import Role, is_sync, role_of
from gpurun.timeline.time_intervals import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpurun.replay.step_events import Indices
    from gpurun.timeline.time_intervals import Times

    Chosen = NDArray[np.bool_]

MOST_ALONE = 16
"""Changes that are taken out one by one, each at the cost of two to four replays; smaller ones are
taken out together. A replay of the longest graph takes a second."""
MOST_TOGETHER = 500
"""Changes that are taken out at all: a file may name a kernel for each of its launches."""
SMALLER = "smaller changes"
BETWEEN = "between the parts of the step"
WHOLE = "in the whole step"
STARTING = (Role.LAUNCH, Role.GRAPH, Role.COPY)
"""Roles of calls that start work: the work's own entry says how many there are."""
OWN_WAIT = ", waiting for its own work"
"""Ends the name of the waits of calls that start work, as launches wait if they are made to."""
BATCHES = "batches of the loader's workers"
"""The time from one batch to the next, where the script waits for it."""


@dataclass(frozen=True)
class Amount:
    """Of a step: milliseconds, and how often."""

    ms: float
    calls: float


@dataclass(frozen=True)
class ReplayedSide:
    """One profile's graph. `parts`: when the host is in each part of the step, by name.

    `things` of calls and of work, each with its number; `numbers`: that of each call, then of each
    work.
    """

    graph: StepGraph
    parts: Mapping[str, Intervals]
    things: Mapping[Thing, int]
    numbers: Indices

    @property
    def steps(self) -> int:
        """Steps whose events the graph holds."""
        return len(self.graph.events.step_ends)

    @property
    def calls(self) -> int:
        """Calls of the graph."""
        return len(self.graph.events.calls)

    def amount(self, thing: Thing) -> Amount | None:
        """What it has of this thing now; None: nothing at all."""
        if thing[0] is ThingKind.HOST:
            host_ns = self.host_ns(thing[1]).sum()
            return self._a_step(host_ns, self.steps * bool(host_ns))
        chosen = self.of(thing)
        waits = thing[1].endswith(OWN_WAIT)
        ns = self.graph.waits.waited_ns if waits else self.cost_ns
        return self._a_step(ns[chosen[: len(ns)]].sum(), chosen.sum())

    def shown(self, thing: Thing) -> Amount | None:
        """The same of a side as it was recorded; calls with their waits."""
        if thing[0] is not ThingKind.CALL or thing[1].endswith(OWN_WAIT):
            return self.amount(thing)
        chosen, calls = self.of(thing), self.graph.events.calls
        return self._a_step((calls.end - calls.begin)[chosen[: self.calls]].sum(), chosen.sum())

    def _a_step(self, ns: float, calls: int) -> Amount | None:
        return Amount(float(ns) / self.steps / 1e6, calls / self.steps) if calls else None

    def of(self, thing: Thing) -> Chosen:
        """For each call, then for each work, whether it is of this thing."""
        name = thing[1].removesuffix(OWN_WAIT)
        chosen: Chosen = self.numbers == self.things.get((thing[0], name), -1)
        if name != thing[1]:
            chosen[: self.calls] &= waiting(self.graph)
        return chosen

    @cached_property
    def cost_ns(self) -> Times:
        """What each call, then each work, takes by itself."""
        return own_times(self.graph)

    def host_ns(self, name: str) -> Times:
        """For each edge how much of it is the host's work in this part, or for `BATCHES`."""
        if name in self.parts:
            return pauses_in(self.graph, self.parts[name])
        batches = self.graph.of_kind(Edge.BATCH) & (name == BATCHES)
        return np.where(batches, self.graph.edges.lag_ns, 0)


def replayed_side(graph: StepGraph, parts: Mapping[str, Intervals]) -> ReplayedSide:
    """A side as it was recorded."""
    names: dict[str, str] = {}
    found: list[Thing] = [(ThingKind.CALL, name) for name in graph.events.calls.name]
    found += [thing_of(each, names) for each in graph.events.work.records]
    things = {thing: number for number, thing in enumerate(dict.fromkeys(found))}
    numbers = np.fromiter((things[thing] for thing in found), np.intp, len(found))
    return ReplayedSide(graph, parts, things, numbers)


Pair = tuple[ReplayedSide, ReplayedSide]


def all_things(pair: Pair) -> tuple[list[Thing], list[Thing]]:
    """What either side has: work and waits, then the host's own time, which these leave."""
    things = dict.fromkeys(thing for side in pair for thing in side.things)
    starting = [(kind, name) for kind, name in things if _starts(kind, name)]
    first = [thing for thing in things if not _starts(*thing)]
    first += [(kind, f"{name}{OWN_WAIT}") for kind, name in starting]
    parts = dict.fromkeys([*(name for side in pair for name in side.parts), BATCHES])
    return first, [*starting, *((ThingKind.HOST, name) for name in parts)]


def _starts(kind: ThingKind, name: str) -> bool:
    return kind is ThingKind.CALL and role_of(name) in STARTING


def equalised(pair: Pair, things: Sequence[Thing]) -> Pair:
    """Both sides with no more of each thing than the side that has less of it.

    All work is changed at once: there may be hundreds of kernels. It goes first, as what is left of
    its calls counts.
    """
    of_work = (ThingKind.KERNEL, ThingKind.COPY)
    work = [thing for thing in things if thing[0] in of_work]
    for together in (work, *([thing] for thing in things if thing[0] not in of_work)):
        amounts = {thing: _amounts(pair, thing) for thing in together}
        before, after = (
            _with_less(
                side,
                {
                    thing: (own[place], least)
                    for thing, (*own, least) in amounts.items()
                    if own[place] != least and (own[place].ms or own[place].calls > least.calls)
                },
            )
            for place, side in enumerate(pair)
        )
        pair = before, after
    return pair


def _amounts(pair: Pair, thing: Thing) -> tuple[Amount, Amount, Amount]:
    """Of both sides, and the least of both."""
    before, after = (side.amount(thing) or Amount(0.0, 0.0) for side in pair)
    return before, after, Amount(min(before.ms, after.ms), min(before.calls, after.calls))


def _with_less(side: ReplayedSide, lesser: Mapping[Thing, tuple[Amount, Amount]]) -> ReplayedSide:
    """`lesser`: work, or one other thing, each with its own amount and the one that is left."""
    thing = next(iter(lesser), None)
    if thing is None:
        return side
    own, least = lesser[thing]
    if thing[0] is ThingKind.HOST:
        shorter = np.rint((1 - _ratio(least.ms, own.ms)) * side.host_ns(thing[1]))
        return replace(side, graph=without_pauses(side.graph, shorter))
    if thing[1].endswith(OWN_WAIT):
        gone = _dropped(side.of(thing), least.calls / own.calls)
        waits = side.graph.into_calls(gone[: side.calls], Edge.WAIT)
        return replace(side, graph=side.graph.without(waits))
    return replace(side, graph=_with_fewer(side, lesser))


def _with_fewer(side: ReplayedSide, lesser: Mapping[Thing, tuple[Amount, Amount]]) -> StepGraph:
    """Fewer calls and work, with what the host does for each, and shorter ones of those left.

    Of calls that start work none goes: only their own time gets less.
    """
    graph, costs = side.graph, side.cost_ns
    left, gone = np.ones(len(costs)), np.zeros(len(costs), dtype=bool)
    for thing, (own, least) in lesser.items():
        chosen = side.of(thing)
        fewer = (
            np.zeros_like(chosen) if _starts(*thing) else _dropped(chosen, least.calls / own.calls)
        )
        kept_ms = float(costs[chosen & ~fewer].sum()) / side.steps / 1e6
        left[chosen] = _ratio(least.ms, kept_ms)
        gone |= fewer
    left[gone] = 0
    own_time = graph.of_kind(Edge.CALL, Edge.RUN)
    factor = np.where(own_time, left[graph.call_of(graph.edges.target)], 1)
    changed = graph.with_lags(np.rint(graph.edges.lag_ns * factor))
    waits = graph.into_calls(gone[: side.calls], Edge.WAIT)
    return without_work(changed.without(waits), gone[side.calls :])


def _ratio(least: float, own: float) -> float:
    """What is left of a thing; all of one that takes no time."""
    return least / own if own > 0 else 1.0


def _dropped(chosen: Chosen, kept: float) -> Chosen:
    """Of those chosen, all but so large a share, evenly among them."""
    places = np.flatnonzero(chosen)
    count = np.arange(len(places) + 1) * min(kept, 1.0) + 1e-9
    found = np.zeros(len(chosen), dtype=bool)
    found[places[np.diff(np.floor(count)) == 0]] = True
    return found


@dataclass(frozen=True)
class _Replayed:
    """Both sides with what was not yet taken out, and their replayed steps in milliseconds."""

    pair: Pair
    steps_ms: tuple[float, float]

    def without(self, things: Sequence[Thing]) -> _Replayed:
        """These taken out of both; a side that has no more of them is not replayed again."""
        pair = equalised(self.pair, things)
        one, other = (
            step if new.graph is old.graph else median_step_ms(new.graph)
            for new, old, step in zip(pair, self.pair, self.steps_ms, strict=True)
        )
        return _Replayed(pair, (one, other))

    def explained_ms(self, rest: _Replayed) -> float:
        """By how much the steps differ more than those of what is left."""
        return (self.steps_ms[1] - self.steps_ms[0]) - (rest.steps_ms[1] - rest.steps_ms[0])


def replayed_changes(
    before: StepGraph, after: StepGraph, timelines: tuple[Timeline, Timeline]
) -> tuple[ProfileChange, ...]:
    """What both graphs differ in, and what that explains of the difference of their median steps.

    The changes are taken out one after the other, the one that explains most by itself first. So
    two that hide each other count once, and all together explain what they do together. The host's
    own time comes last: it is what work and waits leave of it.
    """
    parts = _parts(timelines)
    pair = (replayed_side(before, parts[0]), replayed_side(after, parts[1]))
    first, later = all_things(pair)
    sizes = {thing: _size(pair, thing) for thing in (*first, *later)}
    changed = [thing for thing in sizes if sizes[thing] > 0]
    by_size = sorted(changed, key=lambda thing: (not _waits(thing), -sizes[thing]))
    largest, smaller = by_size[:MOST_ALONE], by_size[MOST_ALONE:MOST_TOGETHER]
    whole = _Replayed(pair, (median_step_ms(before), median_step_ms(after)))
    alone = {
        thing: abs(whole.explained_ms(whole.without([thing])))
        for thing in first
        if thing in largest
    }
    ordered = sorted(alone, key=lambda thing: -alone[thing])
    found, rest = [], whole
    for thing in (*ordered, *(each for each in later if each in largest)):
        left = rest.without([thing])
        one, other = (_spent(side, thing) for side in pair)
        found.append(profile_change(thing, one, other, rest.explained_ms(left)))
        rest = left
    if smaller:
        left = rest.without(smaller)
        found.append(
            ProfileChange(
                kind=ThingKind.OTHERS,
                name=SMALLER,
                change=ChangeKind.SEVERAL,
                before_ms=None,
                after_ms=None,
                explained_ms=rest.explained_ms(left),
            )
        )
    return tuple(found)


def _waits(thing: Thing) -> bool:
    """It waits for the device: even a short wait lets the device run out of work."""
    return thing[0] is ThingKind.CALL and is_sync(thing[1])


def _size(pair: Pair, thing: Thing) -> float:
    """Milliseconds a step by which the sides differ in it; 0: they do not."""
    before, after = (side.shown(thing) or Amount(0.0, 0.0) for side in pair)
    return abs(after.ms - before.ms)


def _spent(side: ReplayedSide, thing: Thing) -> Spent | None:
    amount = side.shown(thing)
    counted = thing[0] is not ThingKind.HOST
    return None if amount is None else (amount.ms, amount.calls if counted else None)


def _parts(timelines: tuple[Timeline, Timeline]) -> tuple[Mapping[str, Intervals], ...]:
    """When the host of each side is in each part of the step; where one marks no parts, all of
    both.
    """
    found = [_marked(timeline) for timeline in timelines]
    if all(found):
        return tuple(found)
    windows = [intervals(timeline.steps or ()) for timeline in timelines]
    return tuple({WHOLE: Intervals(w.start[:1], w.end[-1:])} for w in windows)


def _marked(timeline: Timeline) -> dict[str, Intervals]:
    names = [each.name for each in timeline.ranges or ()]
    ranges = {
        name: intervals([each for each in timeline.ranges or () if each.name == name])
        for name in sorted(MODEL_PHASES.intersection(names))
    }
    if not ranges:
        return {}
    marked = intervals([each for each in timeline.ranges or () if each.name in ranges])
    between = marked.gaps(timeline.window_begin_ns, timeline.window_end_ns)
    return {**ranges, BETWEEN: between}
