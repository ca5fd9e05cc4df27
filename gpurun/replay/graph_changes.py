"""Changes of the graph. Each returns the graph as it would be without one cause of lost time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpurun.replay.step_events import NO_CALL, Edge, Edges, edges_of, is_collective, joined_edges
from gpurun.replay.step_graph import StepGraph
from gpurun.timeline.columns import Indices, Mask, Times, begins, ends, numbers_of, selected
from gpurun.timeline.device_work import exchanging, on_device
from gpurun.timeline.figures_of import LAUNCH_NS
from gpurun.timeline.model import Copy, CopyKind, Kernel, Timeline
from gpurun.timeline.runtime_calls import SYNCS, Role
from gpurun.timeline.time_intervals import Intervals

PAUSES = (Edge.PAUSE, Edge.HANDOVER)
"""Times of the host between two calls."""
HOST = (*PAUSES, Edge.CALL, Edge.STAGE, Edge.BATCH)
"""Times of the host's own work, that of its loader too."""
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
    return _free(graph, graph.of_kind(*DEVICE))


def without_host(graph: StepGraph) -> StepGraph:
    """All work of the host takes no time: the limit of free launches."""
    return _free(graph, graph.of_kind(*HOST))


def without_recording(graph: StepGraph, ns_a_call: float) -> StepGraph:
    """Each call of the host, with the pause before it, takes so much less."""
    edges, left = graph.edges, np.full(len(graph.events.calls), round(ns_a_call), dtype=np.int64)
    lags = edges.lag_ns.copy()
    for kinds in ((Edge.CALL,), PAUSES):
        chosen = np.flatnonzero(graph.of_kind(*kinds))
        call = graph.call_of(edges.target[chosen])
        taken = np.minimum(np.maximum(lags[chosen], 0), left[call])
        lags[chosen] -= taken
        left[call] -= taken
    return graph.with_lags(lags)


def without_waits(graph: StepGraph, roles: Sequence[Role] = SYNCS) -> StepGraph:
    """Calls of these roles return at once."""
    return graph.without(graph.into(_of_roles(graph, roles), Edge.WAIT))


def without_reads(graph: StepGraph) -> StepGraph:
    """The host neither synchronises nor reads values of the device.

    The copy that a read awaits is gone with it, and so is the time between the two calls. A wait
    for the copy of a batch belongs to the copy.
    """
    work, syncs = graph.events.work, _of_roles(graph, SYNCS) & ~_batch_syncs(graph)
    to_host = _copies(graph, CopyKind.D2H)
    reads = _launching(graph, to_host) & (_beside(graph, syncs, -1) | waiting(graph))
    gone = syncs | reads
    between = graph.into(syncs & _beside(graph, reads, 1), *PAUSES)
    copied = to_host & (work.call != NO_CALL) & reads[work.call]
    run = graph.into(graph.on_work(copied), Edge.RUN, Edge.STREAM)
    changed = _free(graph, graph.into(gone, Edge.CALL) | between | run)
    return changed.without(graph.into(gone, Edge.WAIT))


def with_free_launches(graph: StepGraph, apart: Times) -> StepGraph:
    """Launches, and the host's pauses between them, take no time, as in a CUDA graph.

    `apart`: of each edge the pause that has another cause.
    """
    lags = graph.edges.lag_ns
    pauses = np.where(graph.of_kind(*PAUSES), np.minimum(apart, lags), lags)
    free = graph.into(_of_roles(graph, LAUNCHING), Edge.CALL)
    return graph.with_lags(np.where(free, 0, pauses))


def without_calls(graph: StepGraph, roles: Sequence[Role]) -> StepGraph:
    """Calls of these roles are not made."""
    called = graph.into(_of_roles(graph, roles), Edge.CALL)
    return without_waits(_free(graph, called), roles)


def pauses_in(graph: StepGraph, during: Intervals) -> Times:
    """For each edge how much of it is a pause of the host in these times, as recorded."""
    lags, stops = graph.edges.lag_ns, graph.recorded_ns[graph.edges.target]
    inside = during.covered(stops - np.maximum(lags, 0), stops)
    return np.where(graph.of_kind(*PAUSES), np.minimum(inside, lags), 0)


def with_loader_apart(graph: StepGraph, waits: Intervals) -> StepGraph:
    """Batches come from worker processes, at the pace at which they came in the recording.

    `waits`: when the script waited for its loader. A batch for which it waited is ready when the
    wait ended, so long after the one before.
    """
    edges, pauses = graph.edges, pauses_in(graph, waits)
    step = np.diff(graph.events.step_ends).mean()
    late = pauses >= max(LEAST_WAIT * step, 1)
    targets = np.unique(edges.target[late])
    ready = np.diff(graph.recorded_ns[targets])
    known = late & np.isin(edges.target, targets[1:])
    changed = graph.with_lags(edges.lag_ns - np.where(known, pauses, 0))
    return changed.joined(edges_of(Edge.BATCH, targets[:-1], targets[1:], ready))


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
    lags = graph.edges.lag_ns
    chosen = graph.into(graph.on_work(graph.events.work.where(of)), Edge.RUN)
    return graph.with_lags(np.where(chosen, np.rint(lags * factor), lags))


def without_work(graph: StepGraph, gone: Mask) -> StepGraph:
    """This work is part of other work: neither launched nor run, nor awaited by its launch.

    Long pauses stay, and launches of CUDA graphs, which hold other work too.
    """
    launching = _launching(graph, gone) & (graph.events.calls.role != Role.GRAPH)
    short = graph.into(launching, *PAUSES) & (graph.edges.lag_ns <= LAUNCH_NS)
    work, waits = graph.on_work(gone), (Edge.WAIT, Edge.STAGE)
    run = graph.into(work, Edge.RUN, Edge.STREAM)
    changed = _free(graph, graph.into(launching, Edge.CALL) | short | run)
    return changed.without(graph.into(launching, *waits) & graph.out_of(work, *waits))


def without_copies(graph: StepGraph, kind: CopyKind) -> StepGraph:
    """Copies of this kind are not made."""
    return without_work(graph, _copies(graph, kind))


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
    matched = [found for each in others if (found := _matching(work.end[own], each)) is not None]
    if len(own) < 2 or not matched or len(matched) < len(others):
        return graph
    begun, ended = (np.array(each) for each in zip(*matched, strict=True))
    alone = np.minimum(work.end[own] - work.begin[own], (ended - begun).min(axis=0))
    job = graph.events.work_moments[own]
    runs = graph.of_kind(Edge.RUN) & np.isin(graph.edges.target, job + 1)
    lags = graph.edges.lag_ns.copy()
    lags[runs] = alone[np.searchsorted(own, graph.work_of(graph.edges.target[runs]))]
    between = np.maximum(begun.max(axis=0)[1:] - work.end[own][:-1], 0) + alone[1:]
    arrivals = edges_of(Edge.ARRIVAL, job[:-1] + 1, job[1:] + 1, between)
    return graph.with_lags(lags).joined(arrivals)


def with_copies_ahead(graph: StepGraph) -> StepGraph:
    """Batches are copied from pinned memory, a step ahead, beside the kernels."""
    work, calls, syncs = graph.events.work, graph.events.calls, _batch_syncs(graph)
    copies = _copies(graph, CopyKind.H2D)
    on_copies = graph.on_work(copies)
    copying, lags = _launching(graph, copies), graph.edges.lag_ns.copy()
    launches = graph.waits.cost_ns[calls.role == Role.LAUNCH]
    runs, called = graph.into(on_copies, Edge.RUN), graph.into(copying, Edge.CALL)
    lags[runs] = np.minimum(lags[runs], _pinned_ns(graph)[graph.work_of(graph.edges.target[runs])])
    lags[called] = np.minimum(lags[called], int(np.median(launches)) if len(launches) else 0)
    lags[graph.into(syncs, Edge.CALL)] = 0
    waits = graph.into(copying | syncs, Edge.WAIT) | graph.of_kind(Edge.STAGE)
    order = graph.into(on_copies, Edge.STREAM) | graph.out_of(on_copies, Edge.STREAM)
    changed = graph.with_lags(lags).without(waits | order)
    past = _in_order(graph, ~copies, work.stream)
    in_turn = _in_order(graph, copies, np.zeros_like(work.stream))
    return changed.joined(joined_edges([past, in_turn]))


def _in_order(graph: StepGraph, chosen: Mask, streams: Indices) -> Edges:
    """This work in the order of these streams, as if no other were in them."""
    places = np.flatnonzero(chosen)
    places = places[np.argsort(streams[places], kind="stable")]
    job, together = graph.events.work_moments[places], np.diff(streams[places]) == 0
    return edges_of(Edge.STREAM, job[:-1][together] + 1, job[1:][together], 0)


def _matching(ended: Times, other: Timeline) -> tuple[Times, Times] | None:
    """Begin and end of the other rank's collectives that ended with these; None if some lack."""
    if not other.kernels:
        return None
    kernels = on_device(other.kernels, int(numbers_of(other.kernels, "device")[0]))
    found = selected(kernels, exchanging(kernels))
    order = np.argsort(ends(found), kind="stable")
    theirs, begun = ends(found)[order], begins(found)[order]
    if len(theirs) < max(len(ended), 2):
        return None
    later = np.clip(np.searchsorted(theirs, ended), 1, len(theirs) - 1)
    closer = np.abs(theirs[later] - ended) < np.abs(theirs[later - 1] - ended)
    nearest = later - ~closer
    return None if (np.diff(nearest) <= 0).any() else (begun[nearest], theirs[nearest])


def _copies(graph: StepGraph, kind: CopyKind) -> Mask:
    return graph.events.work.where(lambda each: isinstance(each, Copy) and each.kind is kind)


def _batch_syncs(graph: StepGraph) -> Mask:
    """For each call whether it waits for the copy of a batch that was launched just before it."""
    copying = _launching(graph, _copies(graph, CopyKind.H2D))
    return _of_roles(graph, SYNCS) & _beside(graph, copying, 1)


def _launching(graph: StepGraph, of: Mask) -> Mask:
    """For each call whether it launched some of this work."""
    return np.isin(np.arange(len(graph.events.calls)), graph.events.work.call[of])


def waiting(graph: StepGraph) -> Mask:
    """For each call whether it waits for the device."""
    waits = graph.call_of(graph.edges.target[graph.of_kind(Edge.WAIT)])
    return np.isin(np.arange(len(graph.events.calls)), waits)


def _beside(graph: StepGraph, calls: Mask, side: int) -> Mask:
    """For each call whether the one before it in its thread (`side` 1) or after it (-1) is one of
    these."""
    order = graph.of_kind(Edge.PAUSE)
    earlier, later = (graph.call_of(x[order]) for x in (graph.edges.source, graph.edges.target))
    chosen, other = (earlier, later) if side == 1 else (later, earlier)
    return np.isin(np.arange(len(calls)), other[calls[chosen]])


def _pinned_ns(graph: StepGraph) -> Times:
    """For each work how long it would take as a copy from pinned memory."""
    work, pinned = graph.events.work, PINNED_BYTES_PER_NS
    size = np.array([each.bytes if isinstance(each, Copy) else 0 for each in work.records])
    known = work.where(lambda each: isinstance(each, Copy) and each.pageable is False)
    known &= work.end > work.begin
    rates = size[known] / (work.end - work.begin)[known]
    lengths: Times = np.rint(size / rates.max(initial=pinned)).astype(np.int64)
    return lengths


def _free(graph: StepGraph, edges: Mask) -> StepGraph:
    return graph.with_lags(np.where(edges, 0, graph.edges.lag_ns))


def _of_roles(graph: StepGraph, roles: Sequence[Role]) -> Mask:
    return np.isin(graph.events.calls.role, roles)
