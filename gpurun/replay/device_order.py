"""When the device begins its work: behind its launch, in its stream, after events of others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpurun.replay.call_waits import CallWaits
from gpurun.replay.step_events import NO_CALL, Edge, Edges, StepEvents, edges_of
from gpurun.timeline.columns import Indices, Times
from gpurun.timeline.model import Awaited
from gpurun.timeline.runtime_calls import Role

LAUNCH_NS = 1_500
"""From a launch's end to its kernel's begin on an idle device, where a recording shows none: the
median of 20 recordings was 1.1 to 1.9 µs."""
GAP_NS = 1_300
"""Between two kernels in a stream's queue, where a recording shows none: the median of 20
recordings was 1.1 to 1.6 µs."""
LONGEST_LAG_NS = 20_000
"""A longer lag is no property of the device: something that the graph does not show held it up."""
MOST_LOOKED_AT = 4
"""Streams that are tried for an event whose streams are not recorded."""


def device_order(
    events: StepEvents, waits: CallWaits, told: Mapping[int, Awaited]
) -> tuple[list[Edges], int]:
    """The edges that lead to work, and how many events there are whose streams are not recorded.

    A launch takes as long as usual in this recording: from its begin where the call waits for the
    work, else from its end. So does a stream from one work to the next.
    """
    calls, work = events.calls, events.work
    before = np.full(len(work), NO_CALL, dtype=np.intp)
    for members in events.streams.members:
        before[members[1:]] = members[:-1]
    pairs, inferred = _event_orders(events, told)
    pairs += _inside_graphs(events, before)
    known, own = work.call != NO_CALL, waits.own_work[work.call]
    launched = np.where(own, calls.begin[work.call], calls.end[work.call])
    launched = np.where(known, launched, work.begin)
    ready = np.where(before != NO_CALL, work.end[before], -(1 << 62))
    for one, other in pairs:
        ready[other] = max(ready[other], work.end[one])
    queued = ready > launched
    lag = work.begin - np.maximum(ready, launched)
    plain = (np.abs(lag) <= LONGEST_LAG_NS) | (own & ~queued)
    gap = _typical(lag[queued & plain & (lag >= 0)], GAP_NS)
    launch = [_typical(lag[known & ~queued & plain & chosen], LAUNCH_NS) for chosen in (~own, own)]
    call, job, behind = events.call_moments, events.work_moments, before != NO_CALL
    one_of, other_of = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    first, launcher = ~known & ~behind, call[work.call] + ~own
    return [
        edges_of(Edge.START, 0, job, work.begin - events.begin, first),
        edges_of(Edge.LAUNCH, launcher, job, np.where(own, launch[1], launch[0]), known),
        edges_of(Edge.STREAM, job[before] + 1, job, gap, behind),
        edges_of(Edge.EVENT, job[one_of] + 1, job[other_of], gap),
        edges_of(Edge.RUN, job, job + 1, work.end - work.begin),
    ], inferred


def _typical(lags: Times, otherwise: int) -> int:
    return int(np.median(lags)) if len(lags) else otherwise


def _event_orders(
    events: StepEvents, told: Mapping[int, Awaited]
) -> tuple[list[tuple[int, int]], int]:
    """Work that waits for an event of another stream, and how many of these are inferred."""
    calls, numbers, pairs, inferred = events.calls, events.streams.numbers, [], 0
    recorded: dict[int, int] = {}
    begun: dict[int, int] = {}
    for call in np.flatnonzero(np.isin(calls.role, (Role.RECORD, Role.STREAM_WAIT))).tolist():
        thread, begin = int(calls.thread[call]), int(calls.begin[call])
        if calls.role[call] == Role.RECORD:
            recorded[thread] = begun[int(calls.correlation[call])] = begin
            continue
        said = told.get(int(calls.correlation[call]))
        if said is not None and said.stream is not None and said.waiting_stream is not None:
            source, target = numbers.get(said.stream), numbers.get(said.waiting_stream)
            if source is not None and target is not None:
                moment = begun.get(said.recorded, begin)
                pairs += _pair(events, source, target, moment, begin)
        elif thread in recorded and len(events.streams.members) > 1:
            found = _inferred_order(events, recorded[thread], begin)
            inferred += len(found)
            pairs += found
    return pairs, inferred


def _inferred_order(events: StepEvents, moment: int, begin: int) -> list[tuple[int, int]]:
    """By times: the next stream that is launched on waits for the one that was used last."""
    following, streams = [], events.streams
    for number, launches in enumerate(streams.launched):
        at = int(np.searchsorted(launches, begin, side="right"))
        if at < len(launches):
            following.append((int(launches[at]), number))
    last = [(streams.last_before(n, moment), n) for n in range(len(streams.members))]
    used = [(int(events.calls.begin[events.work.call[w]]), n) for w, n in last if w is not None]
    used.sort(reverse=True)
    for _, target in sorted(following)[:MOST_LOOKED_AT]:
        for source in [n for _, n in used if n != target][:MOST_LOOKED_AT]:
            found = _pair(events, source, target, moment, begin)
            if found:
                return found
    return []


def _pair(
    events: StepEvents, source: int, target: int, moment: int, begin: int
) -> list[tuple[int, int]]:
    """The source's last work before the record, and the target's first after the wait; none where
    the recorded times contradict it.
    """
    one = events.streams.last_before(source, moment)
    at = int(np.searchsorted(events.streams.launched[target], begin, side="right"))
    if one is None or at >= len(events.streams.members[target]):
        return []
    other = int(events.streams.members[target][at])
    return [(one, other)] if events.work.end[one] <= events.work.begin[other] else []


def _inside_graphs(events: StepEvents, before: Indices) -> list[tuple[int, int]]:
    """In a CUDA graph the nodes of one stream wait for those of others; by times."""
    calls, work, pairs = events.calls, events.work, []
    graphs = (work.call != NO_CALL) & (calls.role[work.call] == Role.GRAPH)
    ended: dict[int, list[int]] = {}
    for number in np.flatnonzero(graphs).tolist():
        earlier = ended.setdefault(int(work.call[number]), [])
        own = int(before[number])
        done = [e for e in earlier if work.end[e] <= work.begin[number] and e != own]
        if done:
            pairs.append((max(done, key=lambda e: int(work.end[e])), number))
        earlier.append(number)
        del earlier[:-MOST_LOOKED_AT]
    return pairs
