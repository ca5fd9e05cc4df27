"""For which work of the device each call of the host waits, and what the call itself costs.

The recording decides: a call that ended before a piece of work did not wait for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from gpurun.replay.step_events import NO_CALL, Edge, StepEvents, edges_of
from gpurun.timeline.columns import Indices, Mask, Times
from gpurun.timeline.model import Awaited, Copy, CopyKind
from gpurun.timeline.runtime_calls import SYNCS, Role, as_cuda

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


class CallWaits:
    """Waits of the host for the device. `told`: what the recording says of them, by correlation.

    `edges`: from the awaited work to the end of the call. `cost_ns`: what each call takes if it
    need not wait. `waited_ns`: how long each waited in the recording. `own_work`: calls that wait
    for what they launch. `inferred`: waits whose stream is not recorded, by times.
    """

    def __init__(self, events: StepEvents, told: Mapping[int, Awaited]) -> None:
        calls, work = events.calls, events.work
        self.events = events
        self.cost_ns: Times = calls.end - calls.begin
        self.waited_ns = np.zeros_like(self.cost_ns)
        self.own_work = np.zeros(len(calls), dtype=bool)
        self.inferred = 0
        self._pairs: list[tuple[int, int, Edge]] = []
        self._latest = np.zeros_like(self.cost_ns)
        for call in np.flatnonzero(np.isin(calls.role, (*SYNCS, Role.ALLOCATE))).tolist():
            self._sync(call, told.get(int(calls.correlation[call])))
        staged = _staged(events)
        own = _own_work(events) & ~staged
        for number in np.flatnonzero(own).tolist():
            self._add(int(work.call[number]), [number])
        self.own_work[work.call[own | staged]] = True
        self._take_off_waits()
        self._stage(np.flatnonzero(staged))
        self._full_queues()
        waits, awaited, why = np.array(self._pairs, dtype=np.intp).reshape(-1, 3).T
        own_time = np.where(why == Edge.WAIT, self.cost_ns[waits], 0)
        lags = np.where(why == Edge.STAGE, calls.end[waits] - work.begin[awaited], own_time)
        source, target = events.work_moments[awaited], events.call_moments[waits] + 1
        self.edges = edges_of(why, source + (why != Edge.STAGE), target, lags)

    def _add(self, call: int, work: Iterable[int], why: Edge = Edge.WAIT) -> None:
        for each in work:
            self._pairs.append((call, each, why))
            if why is Edge.WAIT:
                self._latest[call] = max(self._latest[call], self.events.work.end[each])

    def _cost(self, call: int, cost: int) -> None:
        """The call takes so long; the rest of it is a wait."""
        calls = self.events.calls
        self.cost_ns[call] = cost
        self.waited_ns[call] = max(int(calls.end[call] - calls.begin[call]) - cost, 0)

    def _sync(self, call: int, told: Awaited | None) -> None:
        """The waits of one call that synchronises."""
        calls, work, streams = self.events.calls, self.events.work, self.events.streams
        begin, end, role = int(calls.begin[call]), int(calls.end[call]), calls.role[call]
        if role == Role.SYNC_EVENT and (told is None or told.stream is None):
            awaited = streams.ended_last(begin, end)
            if awaited is not None and work.end[awaited] >= begin:
                self._add(call, [awaited])
            self.inferred += 1
            return
        known = None if told is None or told.stream is None else streams.numbers.get(told.stream)
        last = [w for w in streams.all_last_before(begin, known) if work.end[w] <= end]
        if role == Role.SYNC_STREAM and known is None and len(streams.members) > 1:
            self.inferred += 1
            last = sorted(last, key=lambda each: int(work.end[each]))[-1:]
        self._add(call, last)

    def _take_off_waits(self) -> None:
        """Calls that wait take as long as others of their name after what they await."""
        calls = self.events.calls
        rest = calls.end - np.maximum(self._latest, calls.begin)
        rests: dict[str, list[int]] = defaultdict(list)
        waiting = np.flatnonzero(np.isin(calls.role, SYNCS) | (self._latest > 0)).tolist()
        for call in waiting:
            rests[calls.name[call]].append(int(rest[call]))
        typical = {name: int(np.median(found)) for name, found in rests.items()}
        for call in waiting:
            exact = calls.role[call] == Role.ALLOCATE
            self._cost(call, int(rest[call]) if exact else typical[calls.name[call]])

    def _stage(self, staged: Indices) -> None:
        """A staged copy takes the host as long as the device, and before it the first piece."""
        calls, work = self.events.calls, self.events.work
        before = np.concatenate([[0], np.maximum.accumulate(work.end)])[staged]
        first = work.begin[staged] - calls.begin[work.call[staged]]
        alone = first[before <= calls.begin[work.call[staged]]]
        typical = int(np.median(alone)) if len(alone) else int(first.min(initial=0))
        for number, lag in zip(staged.tolist(), first.tolist(), strict=True):
            call = int(work.call[number])
            self._add(call, [number], Edge.STAGE)
            self._cost(call, min(lag, typical) + int(calls.end[call] - work.begin[number]))

    def _full_queues(self) -> None:
        """Launches into a full queue wait until the device has done the oldest in it."""
        calls, work = self.events.calls, self.events.work
        for members in self.events.streams.members:
            first = members[np.flatnonzero(np.diff(work.call[members], prepend=NO_CALL - 1))]
            first = first[work.call[first] != NO_CALL]
            if not len(first):
                continue
            launching = work.call[first]
            lengths = calls.end[launching] - calls.begin[launching]
            ended = np.searchsorted(np.sort(work.end[first]), calls.begin[launching], side="right")
            waiting = np.arange(len(first)) - ended
            names = [calls.name[c] for c in launching.tolist()]
            usual = _usual(names, lengths, waiting < LEAST_FULL)
            full = waiting[(lengths > LONG_CALL * usual) & (waiting >= LEAST_FULL)]
            limit = int(np.median(full)) if len(full) else FULL_QUEUE
            for place in np.flatnonzero(waiting >= limit - SLACK).tolist():
                call = int(launching[place])
                if not self._latest[call] and calls.role[call] != Role.COPY:
                    self._cost(call, min(int(usual[place]), int(lengths[place])))
            for place in range(limit, len(first)):
                self._add(int(launching[place]), [int(first[place - limit])], Edge.QUEUE)


def _own_work(events: StepEvents) -> Mask:
    """For each work whether the call that launched it waited for it."""
    calls, work = events.calls, events.work
    known = work.call != NO_CALL
    over = known & (work.end <= calls.end[work.call])
    launched = known & np.isin(calls.role[work.call], (Role.LAUNCH, Role.GRAPH))
    blocking = over[launched].sum() > BLOCKING_SHARE * max(int(launched.sum()), 1)
    pageable = work.where(lambda each: isinstance(each, Copy) and each.pageable)
    plain = np.fromiter(
        (as_cuda(calls.name[c]) == "cudaMemcpy" for c in work.call), bool, len(work)
    )
    waiting: Mask = over & (pageable | (known & plain) | (launched & blocking))
    return waiting


def _staged(events: StepEvents) -> Mask:
    """For each work whether it copies memory that is not pinned while its call lasts."""
    calls, work = events.calls, events.work
    found = work.where(
        lambda each: isinstance(each, Copy) and each.pageable and each.kind is CopyKind.H2D
    )
    found &= (work.call != NO_CALL) & (work.begin <= calls.end[work.call])
    return found


def _usual(calls: list[str], lengths: Times, free: Mask) -> Times:
    """What launches of the same name take if the queue has places: the median."""
    names = np.unique(calls, return_inverse=True)[1]
    usual = lengths.copy()
    for name in range(names.max() + 1):
        own = names == name
        chosen = own & free if (own & free).any() else own
        usual[own] = int(np.median(lengths[chosen]))
    return usual
