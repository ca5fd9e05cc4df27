"""For which work of the device each call of the host waits, and what the call itself costs.

The recording decides: a call that ended before a piece of work did not wait for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from gpurun.replay.step_events import NO_CALL, Calls, Edge, Edges, StepEvents, edges_of
from gpurun.timeline.columns import Indices, Mask, Times
from gpurun.timeline.model import Awaited, Copy, CopyKind
from gpurun.timeline.runtime_calls import SYNCS, Role

FULL_QUEUE = 1022
"""Launches that a stream holds before the host waits: 1,002 to 1,027 were outstanding in eight
recordings of an H100 with a full queue. Where a recording shows its own limit, that counts."""
LEAST_FULL = 900
"""A recording with more outstanding launches than this shows its own limit."""
SLACK = 16
"""A queue with so many free places may be full: events take some, and no source counts them."""
LONG_CALL = 3.0
"""A launch that takes this many times the median waited."""
BLOCKING_SHARE = 0.5
"""If so many launches end after their own kernel, each waits for it (CUDA_LAUNCH_BLOCKING)."""


@dataclass(frozen=True)
class CallWaits:
    """Waits of the host for the device.

    `edges`: from the awaited work to the end of the call. `cost_ns`: what each call takes if it
    need not wait. `waited_ns`: how long each waited in the recording. `own_work`: calls that wait
    for what they launch. `inferred`: waits whose stream is not recorded, by times.
    """

    edges: Edges
    cost_ns: Times
    waited_ns: Times
    own_work: Mask
    inferred: int


class _Found:
    """The waits found so far. `latest`: for each call the end of the last work that it awaits."""

    def __init__(self, events: StepEvents) -> None:
        self.events = events
        self.pairs: list[tuple[int, int, Edge]] = []
        self.inferred = 0
        self.latest = np.zeros(len(events.calls), dtype=np.int64)

    def add(self, call: int, work: Iterable[int], why: Edge = Edge.WAIT) -> None:
        for each in work:
            self.pairs.append((call, each, why))
            if why is Edge.WAIT:
                self.latest[call] = max(self.latest[call], self.events.work.end[each])


def call_waits(events: StepEvents, told: Mapping[int, Awaited]) -> CallWaits:
    """The waits of all calls. `told`: what the recording says of them, by correlation."""
    calls, work = events.calls, events.work
    found = _Found(events)
    for call in np.flatnonzero(np.isin(calls.role, (*SYNCS, Role.ALLOCATE))).tolist():
        _sync(found, call, told.get(int(calls.correlation[call])))
    staged = _staged(events)
    own = _own_work(events) & ~staged
    for number in np.flatnonzero(own).tolist():
        found.add(int(work.call[number]), [number])
    costs = _Costs(calls, found.latest)
    _stage(found, costs, np.flatnonzero(staged))
    _full_queues(found, costs)
    own_calls = np.zeros(len(calls), dtype=bool)
    own_calls[work.call[own | staged]] = True
    waits, awaited, why = np.array(found.pairs, dtype=np.intp).reshape(-1, 3).T
    own_time = np.where(why == Edge.WAIT, costs.cost_ns[waits], 0)
    lags = np.where(why == Edge.STAGE, calls.end[waits] - work.begin[awaited], own_time)
    source, target = events.work_moments[awaited], events.call_moments[waits] + 1
    edges = edges_of(why, source + (why != Edge.STAGE), target, lags)
    return CallWaits(edges, costs.cost_ns, costs.waited_ns, own_calls, found.inferred)


def _sync(found: _Found, call: int, told: Awaited | None) -> None:
    """The waits of one call that synchronises."""
    calls, work, streams = found.events.calls, found.events.work, found.events.streams
    begin, end, role = int(calls.begin[call]), int(calls.end[call]), calls.role[call]
    if role == Role.SYNC_EVENT and (told is None or told.stream is None):
        awaited = streams.ended_last(begin, end)
        if awaited is not None and work.end[awaited] >= begin:
            found.add(call, [awaited])
        found.inferred += 1
        return
    known = None if told is None or told.stream is None else streams.numbers.get(told.stream)
    last = streams.all_last_before(begin).tolist()
    if known is not None:
        of_stream = streams.last_before(known, begin)
        last = [] if of_stream is None else [of_stream]
    last = [each for each in last if work.end[each] <= end]
    if role == Role.SYNC_STREAM and known is None and len(streams.members) > 1:
        found.inferred += 1
        last = sorted(last, key=lambda each: int(work.end[each]))[-1:]
    found.add(call, last)


def _own_work(events: StepEvents) -> Mask:
    """For each work whether the call that launched it waited for it."""
    calls, work = events.calls, events.work
    known = work.call != NO_CALL
    over = known & (work.end <= calls.end[work.call])
    launched = known & np.isin(calls.role[work.call], (Role.LAUNCH, Role.GRAPH))
    blocking = over[launched].sum() > BLOCKING_SHARE * max(int(launched.sum()), 1)
    staged = work.where(lambda each: isinstance(each, Copy) and each.pageable)
    plain = np.fromiter((calls.name[c] == "cudaMemcpy" for c in work.call), bool, len(work))
    waiting: Mask = over & (staged | (known & plain) | (launched & blocking))
    return waiting


def _staged(events: StepEvents) -> Mask:
    """For each work whether it copies memory that is not pinned while its call lasts."""
    calls, work = events.calls, events.work
    found = work.where(
        lambda each: isinstance(each, Copy) and each.pageable and each.kind is CopyKind.H2D
    )
    found &= (work.call != NO_CALL) & (work.begin <= calls.end[work.call])
    return found


def _stage(found: _Found, costs: _Costs, staged: Indices) -> None:
    """A staged copy takes the host as long as the device, and before it the first piece."""
    calls, work = found.events.calls, found.events.work
    before = np.concatenate([[0], np.maximum.accumulate(work.end)])[staged]
    first = work.begin[staged] - calls.begin[work.call[staged]]
    alone = first[before <= calls.begin[work.call[staged]]]
    typical = int(np.median(alone)) if len(alone) else int(first.min(initial=0))
    for number, lag in zip(staged.tolist(), first.tolist(), strict=True):
        call = int(work.call[number])
        found.add(call, [number], Edge.STAGE)
        costs.set(call, min(lag, typical) + int(calls.end[call] - work.begin[number]))


class _Costs:
    """What calls take by themselves, and how long they waited."""

    def __init__(self, calls: Calls, latest: Times) -> None:
        self.lengths = calls.end - calls.begin
        self.cost_ns = self.lengths.copy()
        self.waited_ns = np.zeros(len(calls), dtype=np.int64)
        rest = calls.end - np.maximum(latest, calls.begin)
        rests: dict[str, list[int]] = defaultdict(list)
        waiting = np.flatnonzero(np.isin(calls.role, SYNCS) | (latest > 0)).tolist()
        for call in waiting:
            rests[calls.name[call]].append(int(rest[call]))
        typical = {name: int(np.median(found)) for name, found in rests.items()}
        for call in waiting:
            exact = calls.role[call] == Role.ALLOCATE
            self.set(call, int(rest[call]) if exact else typical[calls.name[call]])

    def set(self, call: int, cost: int) -> None:
        """The call takes so long; the rest of it is a wait."""
        self.cost_ns[call] = cost
        self.waited_ns[call] = max(int(self.lengths[call]) - cost, 0)


def _full_queues(found: _Found, costs: _Costs) -> None:
    """Launches into a full queue wait until the device has done the oldest in it."""
    calls, work = found.events.calls, found.events.work
    for members in found.events.streams.members:
        first = members[np.flatnonzero(np.diff(work.call[members], prepend=NO_CALL - 1))]
        first = first[work.call[first] != NO_CALL]
        if not len(first):
            continue
        launching = work.call[first]
        lengths = costs.lengths[launching]
        ended = np.searchsorted(np.sort(work.end[first]), calls.begin[launching], side="right")
        waiting = np.arange(len(first)) - ended
        usual = _usual([calls.name[c] for c in launching.tolist()], lengths, waiting < LEAST_FULL)
        full = waiting[(lengths > LONG_CALL * usual) & (waiting >= LEAST_FULL)]
        limit = int(np.median(full)) if len(full) else FULL_QUEUE
        for place in np.flatnonzero(waiting >= limit - SLACK).tolist():
            call = int(launching[place])
            if not found.latest[call] and calls.role[call] != Role.COPY:
                costs.set(call, min(int(usual[place]), int(lengths[place])))
        for place in range(limit, len(first)):
            found.add(int(launching[place]), [int(first[place - limit])], Edge.QUEUE)


def _usual(calls: list[str], lengths: Times, free: Mask) -> Times:
    """What launches of the same name take if the queue has places: the median."""
    names = np.unique(calls, return_inverse=True)[1]
    usual = lengths.copy()
    for name in range(names.max() + 1):
        own = names == name
        chosen = own & free if (own & free).any() else own
        usual[own] = int(np.median(lengths[chosen]))
    return usual
