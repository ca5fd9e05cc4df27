"""Changes of the graph. Each returns the graph as it would be without one cause of lost time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpurun.replay.step_events import NO_CALL, Edge, Edges, edges_of, is_collective, joined_edges
from gpurun.replay.step_graph import StepGraph
from gpurun.timeline.columns import numbers_of, selected
from gpurun.timeline.device_work import exchanging, on_device
from gpurun.timeline.idle_causes import LAUNCH_NS
from gpurun.timeline.model import Copy, CopyKind, Kernel, Timeline
from gpurun.timeline.runtime_calls import SYNCS, Role
from gpurun.timeline.time_intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gpurun.replay.step_events import Indices
    from gpurun.timeline.time_intervals import Times

HOST = (Edge.PAUSE, Edge.HANDOVER, Edge.CALL, Edge.STAGE, Edge.BATCH)
"""Times of the host's own work, that of its loader too."""
PAUSES = (Edge.PAUSE, Edge.HANDOVER)
"""Times of the host between two calls."""
LAUNCHING = (Role.LAUNCH, Role.GRAPH, Role.RECORD, Role.STREAM_WAIT, Role.OTHER)
"""Calls that a CUDA graph makes needless. Copies, waits and allocations are causes of their own."""
DEVICE = (Edge.RUN, Edge.STREAM, Edge.EVENT, Edge.LAUNCH)
"""Times of the device's own work."""
LEAST_WAIT = 0.1
"""A shorter wait for a batch, as a share of the step, is taken as the cost of receiving one that
was ready. No recording with worker processes has shown its own yet."""
PINNED_BYTES_PER_NS = 25.0
"""From pinned memory, where a recording shows no such copy: PCIe 4.0, 16 lanes. On an H100 with
PCIe 5.0 a recording showed 55."""


def without_device(graph: StepGraph) -> StepGraph:
    """All work of the device takes no time."""
    return _scaled(graph, graph.of_kind(*DEVICE), 0.0)


def without_host(graph: StepGraph) -> StepGraph:
    """All work of the host takes no time: the limit of free launches."""
    return _scaled(graph, graph.of_kind(*HOST), 0.0)


def without_recording(graph: StepGraph, ns_a_call: float) -> StepGraph:
    """Each call of the host, with the pause before it, takes so much less."""
    calls = len(graph.events.calls)
    edges, left = graph.edges, np.full(calls, round(ns_a_call), dtype=np.int64)
    lags = edges.lag_ns.copy()
    for kinds in ((Edge.CALL,), (Edge.PAUSE, Edge.HANDOVER)):
        chosen = np.flatnonzero(graph.of_kind(*kinds))
        call = graph.call_of(edges.target[chosen])
        taken = np.minimum(np.maximum(lags[chosen], 0), left[call])
        lags[chosen] -= taken
        left[call] -= taken
    return graph.with_lags(lags)


def without_waits(graph: StepGraph, roles: Sequence[Role] = SYNCS) -> StepGraph:
    """Calls of these roles return at once."""
    return graph.without(graph.into_calls(_of_roles(graph, roles), Edge.WAIT))


def without_reads(graph: StepGraph) -> StepGraph:
    """The host neither synchronises nor reads values of the device.

    The copy that a read awaits is gone with it, and so is the time between the two calls. A wait
    for the copy of a batch belongs to the copy.
    """
    work, syncs = graph.events.work, _of_roles(graph, SYNCS) & ~_batch_syncs(graph)
    to_host = _copies(graph, CopyKind.D2H)
    reads = _launching(graph, to_host) & (_followed_by(graph, syncs) | waiting(graph))
    gone = syncs | reads
    between = graph.into_calls(syncs & _following(graph, reads), *PAUSES)
    copied = to_host & (work.call != NO_CALL) & reads[work.call]
    run = graph.into_work(copied, Edge.RUN, Edge.STREAM)
    changed = _scaled(graph, graph.into_calls(gone, Edge.CALL) | between | run, 0.0)
    return changed.without(graph.into_calls(gone, Edge.WAIT))


def with_free_launches(graph: StepGraph, apart: Times) -> StepGraph:
    """Launches, and the host's pauses between them, take no time, as in a CUDA graph.

    `apart`: of each edge the pause that has another cause.
    """
    edges = graph.edges
    free = graph.into_calls(_of_roles(graph, LAUNCHING), Edge.CALL)
    pauses = np.where(graph.of_kind(*PAUSES), np.minimum(apart, edges.lag_ns), edges.lag_ns)
    return graph.with_lags(np.where(free, 0, pauses))


def without_calls(graph: StepGraph, roles: Sequence[Role]) -> StepGraph:
    """Calls of these roles are not made."""
    called = graph.into_calls(_of_roles(graph, roles), Edge.CALL)
    return without_waits(_scaled(graph, called, 0.0), roles)


def without_pauses(graph: StepGraph, pauses_ns: Times) -> StepGraph:
    """The host's pauses are so much shorter, edge by edge."""
    return graph.with_lags(graph.edges.lag_ns - pauses_ns)


def long_pauses(graph: StepGraph, during: Intervals) -> Times:
    """For each edge how much of it is a pause in these times that is no pace of launches."""
    return np.where(graph.edges.lag_ns > LAUNCH_NS, pauses_in(graph, during), 0)


def pauses_in(graph: StepGraph, during: Intervals) -> Times:
    """For each edge how much of it is a pause of the host in these times, as recorded."""
    edges = graph.edges
    ends = graph.recorded_ns[edges.target]
    inside = during.covered(ends - np.maximum(edges.lag_ns, 0), ends)
    pauses = graph.of_kind(*PAUSES)
    return np.where(pauses, np.minimum(inside, edges.lag_ns), 0)


def with_loader_apart(graph: StepGraph, waits: Intervals) -> StepGraph:
    """Batches come from worker processes, at the pace at which they came in the recording.

    `waits`: when the script waited for its loader. A batch for which it waited is ready when the
    wait ended, so long after the one before.
    """
    pauses = pauses_in(graph, waits)
    step = np.diff(graph.events.step_ends).mean()
    pauses = np.where(pauses >= LEAST_WAIT * step, pauses, 0)
    targets = np.unique(graph.edges.target[pauses > 0])
    moments = graph.recorded_ns[targets]
    pauses = np.where(np.isin(graph.edges.target, targets[1:]), pauses, 0)
    source, target = targets[:-1], targets[1:]
    ready = edges_of(Edge.BATCH, source, target, np.diff(moments))
    return graph.with_lags(graph.edges.lag_ns - pauses).joined(ready)


def with_batches_ready(graph: StepGraph, waits: Intervals) -> StepGraph:
    """The script never waits for its loader."""
    apart = np.isin(graph.edges.target, graph.edges.target[graph.of_kind(Edge.BATCH)])
    pauses = np.where(apart, 0, pauses_in(graph, waits))
    changed = graph.with_lags(graph.edges.lag_ns - pauses)
    return changed.without(changed.of_kind(Edge.BATCH))


def with_work_scaled(
    graph: StepGraph, of: Callable[[Kernel | Copy], bool], factor: float
) -> StepGraph:
    """Kernels or copies of which this is true take so many times their time."""
    return _scaled(graph, graph.into_work(graph.events.work.where(of), Edge.RUN), factor)


def without_work(graph: StepGraph, gone: NDArray[np.bool_]) -> StepGraph:
    """This work is part of other work: neither launched nor run, nor awaited by its launch.

    Long pauses stay, and launches of CUDA graphs, which hold other work too.
    """
    launching = _launching(graph, gone) & (graph.events.calls.role != Role.GRAPH)
    short = graph.into_calls(launching, *PAUSES) & (graph.edges.lag_ns <= LAUNCH_NS)
    run = graph.into_work(gone, Edge.RUN, Edge.STREAM)
    changed = _scaled(graph, graph.into_calls(launching, Edge.CALL) | short | run, 0.0)
    waits = (Edge.WAIT, Edge.STAGE)
    return changed.without(graph.into_calls(launching, *waits) & graph.from_work(gone, *waits))


def without_collectives(graph: StepGraph) -> StepGraph:
    """Ranks exchange nothing."""
    changed = with_work_scaled(graph, is_collective, 0.0)
    return changed.without(changed.of_kind(Edge.ARRIVAL))


def with_other_ranks(graph: StepGraph, others: Sequence[Timeline]) -> StepGraph:
    """The graph of one rank, whose collectives wait for the ranks of these timelines.

    The last rank's own work between two collectives stays as long as it was recorded. Collectives
    are the same if they end at the same time; where ranks differ in that, nothing is changed.
    """
    work = graph.events.work
    own = np.flatnonzero(work.where(is_collective) & work.on_device)
    matched = [_matching(work.end[own], each) for each in others]
    if len(own) < 2 or not matched or any(each is None for each in matched):
        return graph
    begins, ends = (np.array([m[i] for m in matched if m is not None]) for i in (0, 1))
    alone = np.minimum(work.end[own] - work.begin[own], (ends - begins).min(axis=0))
    job = graph.events.work_moments[own]
    runs = graph.of_kind(Edge.RUN) & np.isin(graph.edges.target, job + 1)
    lags = graph.edges.lag_ns.copy()
    lags[runs] = alone[np.searchsorted(own, graph.work_of(graph.edges.target[runs]))]
    between = np.maximum(begins.max(axis=0)[1:] - work.end[own][:-1], 0) + alone[1:]
    arrivals = edges_of(Edge.ARRIVAL, job[:-1] + 1, job[1:] + 1, between)
    return graph.with_lags(lags).joined(arrivals)


def with_copies_ahead(graph: StepGraph) -> StepGraph:
    """Batches are copied from pinned memory, a step ahead, beside the kernels."""
    work, copies, syncs = graph.events.work, _copies(graph, CopyKind.H2D), _batch_syncs(graph)
    copying, lags = _launching(graph, copies), graph.edges.lag_ns.copy()
    runs, calls = graph.into_work(copies, Edge.RUN), graph.into_calls(copying, Edge.CALL)
    lags[runs] = np.minimum(lags[runs], _pinned_ns(graph)[graph.work_of(graph.edges.target[runs])])
    lags[calls] = np.minimum(lags[calls], _launch_cost(graph))
    lags[graph.into_calls(syncs, Edge.CALL)] = 0
    waits = graph.into_calls(copying | syncs, Edge.WAIT) | graph.of_kind(Edge.STAGE)
    order = graph.into_work(copies, Edge.STREAM) | graph.from_work(copies, Edge.STREAM)
    changed = graph.with_lags(lags).without(waits | order)
    past = _in_order(graph, ~copies, work.stream)
    in_turn = _in_order(graph, copies, np.zeros_like(work.stream))
    return changed.joined(joined_edges([past, in_turn]))


def _in_order(graph: StepGraph, chosen: NDArray[np.bool_], streams: Indices) -> Edges:
    """This work in the order of these streams, as if no other were in them."""
    places = np.flatnonzero(chosen)
    places = places[np.argsort(streams[places], kind="stable")]
    job, together = graph.events.work_moments[places], np.diff(streams[places]) == 0
    return edges_of(Edge.STREAM, job[:-1][together] + 1, job[1:][together], 0)


def _matching(ends: Times, other: Timeline) -> tuple[Times, Times] | None:
    """Begin and end of the other rank's collectives that ended with these; None if some lack."""
    if not other.kernels:
        return None
    kernels = on_device(other.kernels, int(numbers_of(other.kernels, "device")[0]))
    found = selected(kernels, exchanging(kernels))
    theirs, begins = numbers_of(found, "end_ns"), numbers_of(found, "begin_ns")
    if len(theirs) < max(len(ends), 2):
        return None
    order = np.argsort(theirs, kind="stable")
    begins, theirs = begins[order], theirs[order]
    later = np.clip(np.searchsorted(theirs, ends), 1, len(theirs) - 1)
    closer = np.abs(theirs[later] - ends) < np.abs(theirs[later - 1] - ends)
    nearest: NDArray[np.intp] = np.where(closer, later, later - 1)
    if (np.diff(nearest) <= 0).any():
        return None
    return begins[nearest], theirs[nearest]


def _copies(graph: StepGraph, kind: CopyKind) -> NDArray[np.bool_]:
    return graph.events.work.where(lambda each: isinstance(each, Copy) and each.kind is kind)


def _batch_syncs(graph: StepGraph) -> NDArray[np.bool_]:
    """For each call whether it waits for the copy of a batch that was launched just before it."""
    return _of_roles(graph, SYNCS) & _following(
        graph, _launching(graph, _copies(graph, CopyKind.H2D))
    )


def _launching(graph: StepGraph, of: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """For each call whether it launched some of this work."""
    work = graph.events.work
    calls = np.zeros(len(graph.events.calls), dtype=bool)
    calls[work.call[of & (work.call != NO_CALL)]] = True
    return calls


def waiting(graph: StepGraph) -> NDArray[np.bool_]:
    """For each call whether it waits for the device."""
    calls = np.zeros(len(graph.events.calls), dtype=bool)
    calls[graph.call_of(graph.edges.target[graph.of_kind(Edge.WAIT)])] = True
    return calls


def _following(graph: StepGraph, calls: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """For each call whether the one before it in its thread is one of these."""
    return _neighbours(graph, calls, graph.edges.source, graph.edges.target)


def _followed_by(graph: StepGraph, calls: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """For each call whether the next of its thread is one of these."""
    return _neighbours(graph, calls, graph.edges.target, graph.edges.source)


def _neighbours(
    graph: StepGraph, calls: NDArray[np.bool_], chosen: Indices, other: Indices
) -> NDArray[np.bool_]:
    order = graph.of_kind(Edge.PAUSE)
    found = np.zeros(len(calls), dtype=bool)
    found[graph.call_of(other[order])[calls[graph.call_of(chosen[order])]]] = True
    return found


def _pinned_ns(graph: StepGraph) -> Times:
    """For each work how long it would take as a copy from pinned memory."""
    copies = [each if isinstance(each, Copy) else None for each in graph.events.work.records]
    rates = [
        each.bytes / (each.end_ns - each.begin_ns)
        for each in copies
        if each is not None and each.pageable is False and each.end_ns > each.begin_ns
    ]
    rate = max(rates, default=PINNED_BYTES_PER_NS)
    rate = max(rate, PINNED_BYTES_PER_NS)
    return np.array([0 if each is None else round(each.bytes / rate) for each in copies])


def _launch_cost(graph: StepGraph) -> int:
    """What a launch takes the host."""
    calls = graph.events.calls
    launches = calls.role == Role.LAUNCH
    costs = graph.waits.cost_ns[launches]
    return int(np.median(costs)) if len(costs) else 0


def _scaled(graph: StepGraph, edges: NDArray[np.bool_], factor: float) -> StepGraph:
    lags = graph.edges.lag_ns
    return graph.with_lags(np.where(edges, np.rint(lags * factor), lags))


def _of_roles(graph: StepGraph, roles: Sequence[Role]) -> NDArray[np.bool_]:
    return np.isin(graph.events.calls.role, roles)
