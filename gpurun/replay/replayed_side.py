"""One side of two step graphs that are made alike: its things, and the graph with less of some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpurun.records.diagnosis import ThingKind
from gpurun.replay.call_roles import Role
from gpurun.replay.compared_names import Thing, thing_of
from gpurun.replay.graph_changes import at_places
from gpurun.replay.step_events import NO_CALL
from gpurun.replay.step_graph import Edge, StepGraph
from gpurun.timeline.time_intervals import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Chosen = NDArray[np.bool_]


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


def with_less_work(
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
        fewer = dropped(chosen, least.calls / own.calls)
        left = chosen & ~fewer
        left_ms = float((work.end - work.begin)[left].sum()) / side.steps / 1e6
        shorter[left] = ratio(least.ms, left_ms)
        gone |= fewer
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


def ratio(least: float, own: float) -> float:
    """What is left of a thing; all of one that takes no time."""
    return least / own if own > 0 else 1.0


def dropped(chosen: Chosen, kept: float) -> Chosen:
    """Of those chosen, all but so large a share, evenly among them."""
    places = np.flatnonzero(chosen)
    count = np.arange(len(places) + 1) * min(kept, 1.0) + 1e-9
    found = np.zeros(len(chosen), dtype=bool)
    found[places[np.diff(np.floor(count)) == 0]] = True
    return found


def _usual_pause(graph: StepGraph) -> float:
    """The median of the host's pauses before launches, in nanoseconds, as recorded."""
    launches = graph.events.calls.role == Role.LAUNCH
    pauses = graph.of_kind(Edge.PAUSE) & at_places(launches, graph.call_of(graph.edges.target))
    lags = graph.edges.lag_ns[pauses]
    return float(np.median(lags)) if len(lags) else 0.0
