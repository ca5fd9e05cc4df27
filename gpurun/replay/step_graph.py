"""The graph of the profiled steps: moments, and the least times between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpurun.replay.call_waits import CallWaits
from gpurun.replay.device_order import device_order
from gpurun.replay.step_events import (
    NO_CALL,
    Calls,
    Edge,
    Edges,
    NotReplayable,
    StepEvents,
    edges_of,
    joined_edges,
    step_events,
)
from gpurun.timeline.columns import Indices, Mask, Times, numbers_of, selected
from gpurun.timeline.model import Timeline
from gpurun.timeline.runtime_calls import Role

MOST_OVERLAP = 0.02
"""Threads overlap if so many of the switches between them do: of the recorded pairs of script and
autograd none did, and a thread that polls overlaps in most."""
MOST_WITHOUT_LAUNCH = 0.02
"""Of a device's work, whose launch is not recorded; more of it has no cause in the graph."""


@dataclass(frozen=True)
class StepGraph:
    """Moments: 0 is the begin, then begin and end of each call, then of each work.

    `edges` are in an order in which a replay can take them: all that lead to a moment before those
    that leave it. `recorded_ns`: the moments as recorded. `step_work`: of each step's end on the
    host, the last work of each stream that was launched before, and `step_calls` the last call.
    `counted`: calls whose waits belong to the steps that are compared. `inferred`: waits and events
    whose streams are not recorded.
    """

    events: StepEvents
    waits: CallWaits
    edges: Edges
    recorded_ns: Times
    step_work: Sequence[Sequence[int]]
    step_calls: Indices
    counted: Indices
    inferred: int

    def call_of(self, moments: Indices) -> Indices:
        """The call of each moment; those of work count on behind all calls."""
        return (moments - 1) // 2

    def work_of(self, moments: Indices) -> Indices:
        """The work of each moment; meaningless for those of calls."""
        return self.call_of(moments) - len(self.events.calls)

    def of_kind(self, *kinds: Edge) -> Mask:
        """For each edge whether it is of one of these kinds."""
        return np.isin(self.edges.kind, kinds)

    def into(self, events: Mask, *kinds: Edge) -> Mask:
        """For each edge whether it leads to one of these, and is of one of these kinds.

        `events`: for each call, or for each call and then each work (`on_work`).
        """
        return self._marked(events)[self.edges.target] & self.of_kind(*kinds)

    def out_of(self, events: Mask, *kinds: Edge) -> Mask:
        """For each edge whether it leaves one of these, and is of one of these kinds."""
        return self._marked(events)[self.edges.source] & self.of_kind(*kinds)

    def on_work(self, work: Mask) -> Mask:
        """For each call, then for each work, whether it is of this work."""
        return np.append(np.zeros(len(self.events.calls), dtype=bool), work)

    def _marked(self, events: Mask) -> Mask:
        marked = np.zeros(len(self.recorded_ns), dtype=bool)
        marked[1 : 1 + 2 * len(events)] = np.repeat(events, 2)
        return marked

    def with_lags(self, lag_ns: Times) -> StepGraph:
        """The graph with other times between its moments."""
        return replace(self, edges=replace(self.edges, lag_ns=np.asarray(lag_ns, dtype=np.int64)))

    def without(self, edges: Mask) -> StepGraph:
        """The graph without some of its edges."""
        return replace(self, edges=self.edges.where(~edges))

    def joined(self, more: Edges) -> StepGraph:
        """The graph with more edges."""
        edges = joined_edges([self.edges, more])
        return replace(self, edges=edges.where(replay_order(edges, len(self.recorded_ns))))


def step_graph(timeline: Timeline) -> StepGraph:
    """The graph of a timeline's last steps; `NotReplayable` if it lacks a part."""
    events = step_events(timeline)
    awaited = timeline.awaited or ()
    here = np.isin(numbers_of(awaited, "correlation"), events.calls.correlation)
    told = {each.correlation: each for each in selected(awaited, here)}
    _refuse_opaque(events)
    waits = CallWaits(events, told)
    on_device, inferred = device_order(events, waits, told)
    edges = joined_edges([*_host_edges(events, waits.cost_ns), waits.edges, *on_device])
    calls, work, ends = events.calls, events.work, events.step_ends
    recorded = [np.column_stack([each.begin, each.end]).ravel() for each in (calls, work)]
    recorded_ns = np.concatenate([[events.begin], *recorded])
    return StepGraph(
        events=events,
        waits=waits,
        edges=edges.where(replay_order(edges, len(recorded_ns))),
        recorded_ns=recorded_ns,
        step_work=[events.streams.all_last_before(end) for end in ends.tolist()],
        step_calls=np.maximum(np.searchsorted(calls.begin, ends) - 1, 0),
        counted=np.flatnonzero((calls.begin > ends[0]) & (calls.begin <= ends[-1])),
        inferred=waits.inferred + inferred,
    )


def _refuse_opaque(events: StepEvents) -> None:
    """A recording that does not show what ran why has no graph."""
    calls, work = events.calls, events.work
    graphs = np.flatnonzero(calls.role == Role.GRAPH)
    if len(graphs) and not np.isin(graphs, work.call).all():
        raise NotReplayable("CUDA graphs are opaque in the recording: their kernels are not traced")
    if work.without_launch > MOST_WITHOUT_LAUNCH * len(work):
        raise NotReplayable("the launches of the device's work were not recorded")
    early = (work.call != NO_CALL) & (work.begin < calls.begin[work.call])
    if early.any():
        raise NotReplayable("the clocks of host and device disagree: work begins before its launch")


def _host_edges(events: StepEvents, cost_ns: Times) -> list[Edges]:
    calls, call = events.calls, events.call_moments
    earlier, awaited, pause_ns = _host_sequences(calls)
    awaits, follows = awaited != NO_CALL, earlier != NO_CALL
    return [
        edges_of(Edge.START, 0, call, calls.begin - events.begin, ~awaits & ~follows),
        edges_of(Edge.PAUSE, call[earlier] + 1, call, np.where(awaits, 0, pause_ns), follows),
        edges_of(Edge.HANDOVER, call[awaited] + 1, call, pause_ns, awaits),
        edges_of(Edge.CALL, call, call + 1, cost_ns),
    ]


def _host_sequences(calls: Calls) -> tuple[Indices, Indices, Times]:
    """For each call the one before it in its thread, the one of another thread that it awaits, and
    the pause from the end of the later of them to its begin: the host's own work.

    `NO_CALL` where there is none. A thread whose pauses hold the bursts of another, and whose calls
    never overlap those of the other, waits for it: the script's thread for autograd's in the
    backward pass, and the other way round. Threads whose calls overlap work beside each other and
    do not wait.
    """
    apart = _overlapping(calls)
    before = np.full(len(calls), NO_CALL, dtype=np.intp)
    awaited = np.full(len(calls), NO_CALL, dtype=np.intp)
    pauses = np.zeros(len(calls), dtype=np.int64)
    last: dict[int, tuple[int, int]] = {}
    rows = zip(calls.thread.tolist(), calls.begin.tolist(), calls.end.tolist(), strict=True)
    for number, (thread, begin, end) in enumerate(rows):
        own, own_end = last.get(thread, (NO_CALL, -1))
        other, other_end = NO_CALL, own_end
        for name, (call, its_end) in last.items():
            after = other_end < its_end <= begin
            if name != thread and after and (name, thread) not in apart:
                other, other_end = call, its_end
        before[number], awaited[number] = own, other
        pauses[number] = begin - other_end if other_end >= 0 else 0
        last[thread] = (number, max(end, own_end))
    return before, awaited, np.maximum(pauses, 0)


def _overlapping(calls: Calls) -> set[tuple[int, int]]:
    """The pairs of threads that work beside each other, in both orders."""
    switches: Counter[tuple[int, int]] = Counter()
    overlaps: Counter[tuple[int, int]] = Counter()
    running, until = NO_CALL, -1
    rows = zip(calls.thread.tolist(), calls.begin.tolist(), calls.end.tolist(), strict=True)
    for thread, begin, end in rows:
        if thread != running:
            pair = (min(thread, running), max(thread, running))
            switches[pair] += 1
            overlaps[pair] += begin < until
        if end >= until or thread != running:
            running, until = thread, max(until, end)
    found = [pair for pair, count in switches.items() if overlaps[pair] > MOST_OVERLAP * count]
    return {pair for one, other in found for pair in ((one, other), (other, one))}


def replay_order(edges: Edges, moments: int) -> Indices:
    """The places of the edges in an order in which each moment is known before it is used.

    `NotReplayable` where moments wait for each other.
    """
    by_source = np.argsort(edges.source, kind="stable")
    targets = edges.target[by_source].tolist()
    starts = np.searchsorted(edges.source[by_source], np.arange(moments + 1)).tolist()
    missing = np.bincount(edges.target, minlength=moments)
    ready = np.flatnonzero(missing == 0).tolist()
    waiting, place, known = missing.tolist(), [0] * moments, 0
    while ready:
        moment = ready.pop()
        place[moment] = known
        known += 1
        for target in targets[starts[moment] : starts[moment + 1]]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    if known < moments:
        raise NotReplayable("recorded times contradict each other")
    return np.argsort(np.array(place)[edges.source], kind="stable")
