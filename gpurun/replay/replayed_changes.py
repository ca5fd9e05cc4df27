"""What each change between two step graphs explains: it is taken out, and the steps replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gpurun.records.diagnosis import ChangeKind, ProfileChange, ThingKind
from gpurun.replay.graph_changes import pauses_in, waiting, without_work
from gpurun.replay.replayed_steps import median_step_ms, own_times
from gpurun.replay.spent_time import Spent, Thing, profile_change, thing_of
from gpurun.replay.step_events import Edge
from gpurun.replay.step_graph import StepGraph
from gpurun.timeline.columns import Indices, Mask, Times
from gpurun.timeline.model import MODEL_PHASES, Timeline
from gpurun.timeline.runtime_calls import Role, is_sync, role_of
from gpurun.timeline.time_intervals import Intervals, intervals

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
NOTHING = Spent(0.0)


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

    @cached_property
    def step_ms(self) -> float:
        """Its median step, in milliseconds."""
        return median_step_ms(self.graph)

    @cached_property
    def cost_ns(self) -> Times:
        """What each call, then each work, takes by itself."""
        return own_times(self.graph)

    @property
    def steps(self) -> int:
        """Steps whose events the graph holds."""
        return len(self.graph.events.step_ends)

    def amount(self, thing: Thing, *, with_waits: bool = False) -> Spent | None:
        """What it has of this thing now; None: nothing at all. `with_waits`: as recorded."""
        kind, name = thing
        if kind is ThingKind.HOST:
            ns = self.host_ns(name).sum()
            return Spent(float(ns) / self.steps / 1e6) if ns else None
        if name.endswith(OWN_WAIT):
            chosen, times = self.of(thing), self.graph.waits.waited_ns
            count, ns = chosen.sum(), times[chosen[: len(times)]].sum()
        elif thing in self.things:
            count, own, recorded = (each[self.things[thing]] for each in self._sums)
            ns = recorded if with_waits else own
        else:
            return None
        return Spent(float(ns) / self.steps / 1e6, int(count) / self.steps) if count else None

    @cached_property
    def _sums(self) -> tuple[Times, Times, Times]:
        """Of each thing how many there are, and their time without waits and as recorded."""
        calls, cost = self.graph.events.calls, self.cost_ns
        lengths = np.append(calls.end - calls.begin, cost[len(calls) :])
        counts, own, recorded = (
            np.bincount(self.numbers, each, len(self.things)) for each in (None, cost, lengths)
        )
        return counts, own, recorded

    def of(self, thing: Thing) -> Mask:
        """For each call, then for each work, whether it is of this thing."""
        name = thing[1].removesuffix(OWN_WAIT)
        chosen: Mask = self.numbers == self.things.get((thing[0], name), -1)
        if name != thing[1]:
            chosen[: len(self.graph.events.calls)] &= waiting(self.graph)
        return chosen

    def host_ns(self, name: str) -> Times:
        """For each edge how much of it is the host's work in this part, or for `BATCHES`."""
        if name in self.parts:
            return pauses_in(self.graph, self.parts[name])
        batches = self.graph.of_kind(Edge.BATCH) & (name == BATCHES)
        return np.where(batches, self.graph.edges.lag_ns, 0)

    def without_waits(self, calls: Mask) -> StepGraph:
        """The graph in which these of all calls and work wait for nothing."""
        return self.graph.without(self.graph.into(calls, Edge.WAIT))


def _side(graph: StepGraph, parts: Mapping[str, Intervals]) -> ReplayedSide:
    found: list[Thing] = [(ThingKind.CALL, name) for name in graph.events.calls.name]
    found += [thing_of(each) for each in graph.events.work.records]
    things = {thing: number for number, thing in enumerate(dict.fromkeys(found))}
    numbers = np.fromiter((things[thing] for thing in found), np.intp, len(found))
    return ReplayedSide(graph, parts, things, numbers)


Pair = tuple[ReplayedSide, ReplayedSide]
Lesser = dict[Thing, tuple[Spent, Spent]]
"""Things with their own amount and the one that is left."""


def _all_things(pair: Pair) -> tuple[list[Thing], list[Thing]]:
    """What either side has: work and waits, then the host's own time, which these leave."""
    things = dict.fromkeys(thing for side in pair for thing in side.things)
    starting = [thing for thing in things if _starts(thing)]
    first = [thing for thing in things if not _starts(thing)]
    first += [(kind, f"{name}{OWN_WAIT}") for kind, name in starting]
    parts = dict.fromkeys([*(name for side in pair for name in side.parts), BATCHES])
    return first, [*starting, *((ThingKind.HOST, name) for name in parts)]


def _starts(thing: Thing) -> bool:
    return thing[0] is ThingKind.CALL and role_of(thing[1]) in STARTING


def _equalised(pair: Pair, things: Sequence[Thing]) -> Pair:
    """Both sides with no more of each thing than the side that has less of it.

    All work is changed at once: there may be hundreds of kernels. It goes first, as what is left of
    its calls counts.
    """
    work = [thing for thing in things if thing[0] in (ThingKind.KERNEL, ThingKind.COPY)]
    for together in (work, *([thing] for thing in things if thing not in work)):
        more: tuple[Lesser, Lesser] = {}, {}
        for thing in together:
            amounts = [side.amount(thing) or NOTHING for side in pair]
            least = Spent(min(a.ms for a in amounts), min(a.calls for a in amounts))
            for own, of_side in zip(amounts, more, strict=True):
                if own != least and (own.ms or own.calls > least.calls):
                    of_side[thing] = own, least
        pair = _with_less(pair[0], more[0]), _with_less(pair[1], more[1])
    return pair


def _with_less(side: ReplayedSide, lesser: Lesser) -> ReplayedSide:
    """`lesser`: work, or one other thing."""
    if not lesser:
        return side
    thing, (own, least) = next(iter(lesser.items()))
    if thing[0] is ThingKind.HOST:
        shorter = np.rint((1 - _ratio(least.ms, own.ms)) * side.host_ns(thing[1]))
        changed = side.graph.with_lags(side.graph.edges.lag_ns - shorter)
    elif thing[1].endswith(OWN_WAIT):
        changed = side.without_waits(_dropped(side.of(thing), least.calls / own.calls))
    else:
        changed = _with_fewer(side, lesser)
    return replace(side, graph=changed)


def _with_fewer(side: ReplayedSide, lesser: Lesser) -> StepGraph:
    """Fewer calls and work, with what the host does for each, and shorter ones of those left.

    Of calls that start work none goes: only their own time gets less.
    """
    costs = side.cost_ns
    left, gone = np.ones(len(costs)), np.zeros(len(costs), dtype=bool)
    for thing, (own, least) in lesser.items():
        chosen = side.of(thing)
        fewer = _dropped(chosen, 1.0 if _starts(thing) else least.calls / own.calls)
        kept_ms = float(costs[chosen & ~fewer].sum()) / side.steps / 1e6
        left[chosen] = _ratio(least.ms, kept_ms)
        gone |= fewer
    left[gone] = 0
    graph = side.without_waits(gone)
    own_time = graph.of_kind(Edge.CALL, Edge.RUN)
    factor = np.where(own_time, left[graph.call_of(graph.edges.target)], 1)
    changed = graph.with_lags(np.rint(graph.edges.lag_ns * factor))
    return without_work(changed, gone[len(graph.events.calls) :])


def _ratio(least: float, own: float) -> float:
    """What is left of a thing; all of one that takes no time."""
    return least / own if own > 0 else 1.0


def _dropped(chosen: Mask, kept: float) -> Mask:
    """Of those chosen, all but so large a share, evenly among them."""
    places, found = np.flatnonzero(chosen), np.zeros(len(chosen), dtype=bool)
    count = np.arange(len(places) + 1) * min(kept, 1.0) + 1e-9
    found[places[np.diff(np.floor(count)) == 0]] = True
    return found


def replayed_changes(
    graphs: Sequence[StepGraph], timelines: Sequence[Timeline]
) -> tuple[ProfileChange, ...]:
    """What both graphs differ in, and what that explains of the difference of their median steps.

    The changes are taken out one after the other, the one that explains most by itself first. So
    two that hide each other count once, and all together explain what they do together. The host's
    own time comes last: it is what work and waits leave of it.
    """
    before, after = (_side(g, parts) for g, parts in zip(graphs, _parts(timelines), strict=True))
    pair = before, after
    first, later = _all_things(pair)
    recorded = {
        t: (before.amount(t, with_waits=True), after.amount(t, with_waits=True))
        for t in (*first, *later)
    }
    sizes = {t: abs((b or NOTHING).ms - (a or NOTHING).ms) for t, (a, b) in recorded.items()}
    changed = [thing for thing in sizes if sizes[thing] > 0]
    # even a short wait lets the device run out of work: waits come first
    by_size = sorted(changed, key=lambda thing: (not is_sync(thing[1]), -sizes[thing]))
    largest, smaller = by_size[:MOST_ALONE], by_size[MOST_ALONE:MOST_TOGETHER]
    alone = {t: abs(_explained(pair, _equalised(pair, [t]))) for t in first if t in largest}
    ordered = sorted(alone, key=lambda thing: -alone[thing])
    found, rest = [], pair
    for thing in (*ordered, *(each for each in later if each in largest)):
        left = _equalised(rest, [thing])
        found.append(profile_change(thing, *recorded[thing], _explained(rest, left)))
        rest = left
    if smaller:
        explained = _explained(rest, _equalised(rest, smaller))
        others = ThingKind.OTHERS, SMALLER, ChangeKind.SEVERAL
        found.append(ProfileChange(*others, None, None, explained_ms=explained))
    return tuple(found)


def _explained(pair: Pair, rest: Pair) -> float:
    """By how much the steps, in milliseconds, differ more than those of what is left."""
    return (pair[1].step_ms - pair[0].step_ms) - (rest[1].step_ms - rest[0].step_ms)


def _parts(timelines: Sequence[Timeline]) -> Sequence[Mapping[str, Intervals]]:
    """When each side's host is in each part of the step; all of both where one marks no parts."""
    found = [_marked(timeline) for timeline in timelines]
    if all(found):
        return found
    windows = [intervals(timeline.steps or ()) for timeline in timelines]
    return [{WHOLE: Intervals(w.start[:1], w.end[-1:])} for w in windows]


def _marked(timeline: Timeline) -> dict[str, Intervals]:
    marked = timeline.named(*MODEL_PHASES)
    between = intervals(marked).gaps(timeline.window_begin_ns, timeline.window_end_ns)
    names = sorted({each.name for each in marked})
    parts = {name: intervals(timeline.named(name)) for name in names}
    return {**parts, BETWEEN: between} if parts else {}
