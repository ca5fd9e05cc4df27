"""Two step graphs made alike thing by thing: each has as much of it as the one that has less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gpurun.records.diagnosis import ThingKind
from gpurun.replay.call_roles import Role
from gpurun.replay.compared_names import Thing
from gpurun.replay.graph_changes import at_places, pauses_in, without_pauses
from gpurun.replay.replayed_side import (
    Amount,
    ReplayedSide,
    dropped,
    ratio,
    with_less_work,
)
from gpurun.replay.step_graph import Edge

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Chosen = NDArray[np.bool_]

STARTING = (Role.LAUNCH, Role.GRAPH, Role.COPY)
"""Roles of calls that start work: the work's own entry says how many there are."""
BATCHES = "batches of the loader's workers"


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
        return with_less_work(side, [(self.thing, own, least)])


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
        gone = dropped(chosen & ~starts, least.calls / own.calls)
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
        gone = dropped(self._waiting(side), least.calls / own.calls)
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
        pauses = pauses_in(side.graph, side.parts[self.thing[1]])
        shorter = np.rint((1 - ratio(least.ms, own.ms)) * pauses)
        return side.with_graph(without_pauses(side.graph, shorter))


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
        faster = np.where(batches, np.rint(lags * ratio(least.ms, own.ms)), lags)
        return side.with_graph(graph.with_lags(faster))


Pair = tuple[ReplayedSide, ReplayedSide]


def equalised(pair: Pair, things: Sequence[GraphThing]) -> Pair:
    """Both sides with no more of each thing than the side that has less of it.

    All work is changed at once: there may be hundreds of kernels.
    """
    work = [(each, *_amounts(pair, each)) for each in things if isinstance(each, DeviceWorkThing)]
    before, after = (
        with_less_work(
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
