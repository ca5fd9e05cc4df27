"""Two step graphs made alike thing by thing: each has as much of it as the one that has less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gpurun.records.diagnosis import ThingKind
from gpurun.replay.call_roles import Role
from gpurun.replay.compared_names import Thing, thing_of
from gpurun.replay.graph_changes import at_places, pauses_in, without_pauses
from gpurun.replay.step_events import NO_CALL
from gpurun.replay.step_graph import Edge, StepGraph
from gpurun.timeline.time_intervals import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Chosen = NDArray[np.bool_]

STARTING = (Role.LAUNCH, Role.GRAPH, Role.COPY)
"""Roles of calls that start work: the work's own entry says how many there are."""
BATCHES = "batches of the loader's workers"


@dataclass(frozen=True)
class Amount:
    """Of a step: milliseconds, and how often."""

    ms: float
    calls: float


@dataclass(frozen=True)
class Grouped:
    """Events by thing: the number of each thing, and that of each event."""

    things: Mapping[Thing, int]
    numbers: NDArray[np.intp]

    def of(self, thing: Thing) -> Chosen | None:
        """For each event whether it is of this thing; None if none is."""
        number = self.things.get(thing)
        return None if number is None else self.numbers == number


def grouped(things: Sequence[Thing]) -> Grouped:
    """Events whose things these are."""
    kinds = {thing: number for number, thing in enumerate(dict.fromkeys(things))}
    numbers = np.fromiter((kinds[thing] for thing in things), np.intp, len(things))
    return Grouped(kinds, numbers)


@dataclass(frozen=True)
class ReplayedSide:
    """One profile's graph. `parts`: when the host is in each part of the step, by name.

    `work`, `calls`: for each thing which of the graph's work or calls are of it.
    """

    graph: StepGraph
    parts: Mapping[str, Intervals]
    work: Grouped
    calls: Grouped

    @property
    def steps(self) -> int:
        """Steps whose events the graph holds."""
        return len(self.graph.events.step_ends)

    def with_graph(self, graph: StepGraph) -> ReplayedSide:
        """The same with another graph of the same events."""
        return replace(self, graph=graph)


def replayed_side(graph: StepGraph, parts: Mapping[str, Intervals]) -> ReplayedSide:
    """A side as it was recorded."""
    names: dict[str, str] = {}
    work = [thing_of(each, names) for each in graph.events.work.records]
    calls = [(ThingKind.CALL, name) for name in graph.events.calls.name]
    return ReplayedSide(graph, parts, grouped(work), grouped(calls))


class GraphThing(Protocol):
    """Something that both graphs may have more or less of."""

    @property
    def thing(self) -> Thing:
        """Kind and name."""

    def amount(self, side: ReplayedSide) -> Amount | None:
        """What a side has of it now; None: nothing at all."""

    def shown(self, side: ReplayedSide) -> Amount | None:
        """The same as recorded."""

    def reduced(self, side: ReplayedSide, own: Amount, least: Amount) -> ReplayedSide:
        """The side with the lesser amount."""


@dataclass(frozen=True)
class DeviceWorkThing:
    """All launches of a kernel, or all copies of a kind."""

    thing: Thing

    def amount(self, side: ReplayedSide) -> Amount | None:
        """As recorded: nothing else changes it."""
        chosen, work = side.work.of(self.thing), side.graph.events.work
        if chosen is None:
            return None
        ran = float((work.end - work.begin)[chosen].sum())
        return Amount(ran / side.steps / 1e6, float(chosen.sum()) / side.steps)

    shown = amount

    def reduced(self, side: ReplayedSide, own: Amount, least: Amount) -> ReplayedSide:
        """Fewer launches, with what the host does for each, and shorter runs of those left."""
        return _with_less_work(side, [(self.thing, own, least)])


@dataclass(frozen=True)
class CallThing:
    """All calls of one name: their own time, and the waits of those that only one side makes."""

    thing: Thing

    def amount(self, side: ReplayedSide) -> Amount | None:
        """Their own time as the graph has it now, without waits."""
        chosen = side.calls.of(self.thing)
        if chosen is None:
            return None
        costs = side.graph.edges.lag_ns[self._costs(side, chosen)]
        return Amount(float(costs.sum()) / side.steps / 1e6, float(chosen.sum()) / side.steps)

    def shown(self, side: ReplayedSide) -> Amount | None:
        """Their time with their waits."""
        chosen, calls = side.calls.of(self.thing), side.graph.events.calls
        if chosen is None:
            return None
        took = float((calls.end - calls.begin)[chosen].sum())
        return Amount(took / side.steps / 1e6, float(chosen.sum()) / side.steps)

    def reduced(self, side: ReplayedSide, own: Amount, least: Amount) -> ReplayedSide:
        """Fewer calls and their waits; of calls that start work, only less of their own time."""
        chosen, graph = side.calls.of(self.thing), side.graph
        assert chosen is not None
        starts = np.isin(graph.events.calls.role, STARTING)
        gone = _dropped(chosen & ~starts, least.calls / own.calls)
        lags = graph.edges.lag_ns.astype(float)
        lags[self._costs(side, gone)] = 0
        left_ms = float(lags[self._costs(side, chosen)].sum()) / side.steps / 1e6
        if left_ms > least.ms:
            lags[self._costs(side, chosen)] *= least.ms / left_ms
        changed = graph.with_lags(np.rint(lags))
        of_gone = at_places(gone, graph.call_of(graph.edges.target))
        return side.with_graph(changed.without(graph.of_kind(Edge.WAIT) & of_gone))

    def _costs(self, side: ReplayedSide, chosen: Chosen) -> Chosen:
        graph = side.graph
        return graph.of_kind(Edge.CALL) & at_places(chosen, graph.call_of(graph.edges.target))


@dataclass(frozen=True)
class OwnWaitThing:
    """Calls of one name that start work and wait for it, as launches do if they are made to."""

    call: Thing

    @property
    def thing(self) -> Thing:
        """Kind and name."""
        return ThingKind.CALL, f"{self.call[1]}, waiting for its own work"

    def amount(self, side: ReplayedSide) -> Amount | None:
        """How long, and how many of them wait."""
        waiting = self._waiting(side)
        if not waiting.any():
            return None
        waited = float(side.graph.waits.waited_ns[waiting].sum())
        return Amount(waited / side.steps / 1e6, float(waiting.sum()) / side.steps)

    shown = amount

    def reduced(self, side: ReplayedSide, own: Amount, least: Amount) -> ReplayedSide:
        """Fewer of them wait."""
        graph = side.graph
        gone = _dropped(self._waiting(side), least.calls / own.calls)
        of_gone = at_places(gone, graph.call_of(graph.edges.target))
        return side.with_graph(graph.without(graph.of_kind(Edge.WAIT) & of_gone))

    def _waiting(self, side: ReplayedSide) -> Chosen:
        graph = side.graph
        waiting = np.zeros(len(graph.events.calls), dtype=bool)
        waiting[graph.call_of(graph.edges.target[graph.of_kind(Edge.WAIT)])] = True
        chosen = side.calls.of(self.call)
        return waiting & chosen if chosen is not None else np.zeros_like(waiting)


@dataclass(frozen=True)
class HostWorkThing:
    """The host's own work between its calls, in one part of the step."""

    thing: Thing

    def amount(self, side: ReplayedSide) -> Amount | None:
        """As the graph has it now."""
        part = side.parts.get(self.thing[1])
        if part is None:
            return None
        return Amount(float(pauses_in(side.graph, part).sum()) / side.steps / 1e6, 1.0)

    shown = amount

    def reduced(self, side: ReplayedSide, own: Amount, least: Amount) -> ReplayedSide:
        """All of its pauses shorter."""
        during = side.parts[self.thing[1]]
        return side.with_graph(without_pauses(side.graph, during, 1 - _ratio(least.ms, own.ms)))


@dataclass(frozen=True)
class BatchThing:
    """The time from one batch of a loader's workers to the next, where the script waits for it."""

    thing: Thing = (ThingKind.HOST, BATCHES)

    def amount(self, side: ReplayedSide) -> Amount | None:
        """A step; None where the script never waits for its workers."""
        lags = side.graph.edges.lag_ns[side.graph.of_kind(Edge.BATCH)]
        if not len(lags):
            return None
        return Amount(float(lags.sum()) / side.steps / 1e6, len(lags) / side.steps)

    shown = amount

    def reduced(self, side: ReplayedSide, own: Amount, least: Amount) -> ReplayedSide:
        """Batches come faster."""
        graph, lags = side.graph, side.graph.edges.lag_ns
        batches = graph.of_kind(Edge.BATCH)
        faster = np.where(batches, np.rint(lags * _ratio(least.ms, own.ms)), lags)
        return side.with_graph(graph.with_lags(faster))


Pair = tuple[ReplayedSide, ReplayedSide]


def equalised(pair: Pair, things: Sequence[GraphThing]) -> Pair:
    """Both sides with no more of each thing than the side that has less of it.

    All work is changed at once: there may be hundreds of kernels.
    """
    work = [(each, *_amounts(pair, each)) for each in things if isinstance(each, DeviceWorkThing)]
    before, after = (
        _with_less_work(
            side,
            [
                (each.thing, amounts[place], least)
                for each, *amounts, least in work
                if _has_more(amounts[place], least)
            ],
        )
        for place, side in enumerate(pair)
    )
    for thing in things:
        if not isinstance(thing, DeviceWorkThing):
            own, others, least = _amounts((before, after), thing)
            before = thing.reduced(before, own, least) if _has_more(own, least) else before
            after = thing.reduced(after, others, least) if _has_more(others, least) else after
    return before, after


def _amounts(pair: Pair, thing: GraphThing) -> tuple[Amount, Amount, Amount]:
    """Of both sides, and the least of both."""
    before, after = (thing.amount(side) or Amount(0.0, 0.0) for side in pair)
    return before, after, Amount(min(before.ms, after.ms), min(before.calls, after.calls))


def _has_more(own: Amount, least: Amount) -> bool:
    return own != least and (own.ms > 0 or own.calls > least.calls)


def _with_less_work(
    side: ReplayedSide, lesser: Sequence[tuple[Thing, Amount, Amount]]
) -> ReplayedSide:
    """`lesser`: things of the side, each with its own amount and the one that is left."""
    graph, work = side.graph, side.graph.events.work
    if not lesser:
        return side
    gone, shorter = np.zeros(len(work), dtype=bool), np.ones(len(work))
    for thing, own, least in lesser:
        chosen = side.work.of(thing)
        assert chosen is not None
        dropped = _dropped(chosen, least.calls / own.calls)
        left = chosen & ~dropped
        left_ms = float((work.end - work.begin)[left].sum()) / side.steps / 1e6
        shorter[left] = _ratio(least.ms, left_ms)
        gone |= dropped
    target = graph.edges.target
    lags = graph.edges.lag_ns.astype(float)
    runs = graph.of_kind(Edge.RUN)
    lags[runs] *= shorter[graph.work_of(target[runs])]
    lags[graph.of_kind(Edge.RUN, Edge.STREAM) & at_places(gone, graph.work_of(target))] = 0
    caller = work.call[gone & (work.call != NO_CALL)]
    idle = np.zeros(len(graph.events.calls), dtype=bool)
    idle[caller] = graph.events.calls.role[caller] != Role.GRAPH
    of_gone = at_places(idle, graph.call_of(target))
    lags[graph.of_kind(Edge.CALL) & of_gone] = 0
    pauses = graph.of_kind(Edge.PAUSE, Edge.HANDOVER) & of_gone
    lags[pauses] = np.maximum(lags[pauses] - _usual_pause(graph), 0)
    changed = graph.with_lags(np.rint(lags))
    waits = graph.of_kind(Edge.WAIT, Edge.STAGE)
    awaited = at_places(gone, graph.work_of(graph.edges.source)) & of_gone
    return side.with_graph(changed.without(waits & awaited))


def all_things(pair: Pair) -> tuple[list[GraphThing], list[GraphThing]]:
    """What either side has: work and waits, then the host's own time, which these leave."""
    works = dict.fromkeys(thing for side in pair for thing in side.work.things)
    calls = dict.fromkeys(thing for side in pair for thing in side.calls.things)
    parts = dict.fromkeys(name for side in pair for name in side.parts)
    starts = {
        (ThingKind.CALL, name)
        for side in pair
        for name, role in zip(
            side.graph.events.calls.name, side.graph.events.calls.role, strict=True
        )
        if role in STARTING
    }
    first: list[GraphThing] = [DeviceWorkThing(thing) for thing in works]
    first += [CallThing(thing) for thing in calls if thing not in starts]
    first += [OwnWaitThing(thing) for thing in calls if thing in starts]
    later: list[GraphThing] = [CallThing(thing) for thing in calls if thing in starts]
    later += [HostWorkThing((ThingKind.HOST, name)) for name in parts]
    return first, [*later, BatchThing()]


def _ratio(least: float, own: float) -> float:
    return least / own if own > 0 else 1.0


def _dropped(chosen: Chosen, kept: float) -> Chosen:
    """Of those chosen, all but so large a share, evenly among them."""
    places = np.flatnonzero(chosen)
    count = np.arange(len(places) + 1) * min(kept, 1.0) + 1e-9
    dropped = np.zeros(len(chosen), dtype=bool)
    dropped[places[np.diff(np.floor(count)) == 0]] = True
    return dropped


def _usual_pause(graph: StepGraph) -> float:
    """The median of the host's pauses before launches, in nanoseconds, as recorded."""
    launches = graph.events.calls.role == Role.LAUNCH
    pauses = graph.of_kind(Edge.PAUSE) & at_places(launches, graph.call_of(graph.edges.target))
    lags = graph.edges.lag_ns[pauses]
    return float(np.median(lags)) if len(lags) else 0.0
