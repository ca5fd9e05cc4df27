"""For which work of the device each call of the host waits, and what the call itself costs.

The recording decides: a call that ended before a piece of work did not wait for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpurun.replay.step_events import NO_CALL, Calls, Edge, Edges, StepEvents, Work, edges_of
from gpurun.timeline.model import Copy, CopyKind
from gpurun.timeline.runtime_calls import SYNCS, Role

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpurun.replay.step_events import Indices
    from gpurun.timeline.model import Awaited
    from gpurun.timeline.time_intervals import Times

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
    own_work: NDArray[np.bool_]
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
    streams = StreamOrder(calls, work)
    for call in np.flatnonzero(np.isin(calls.role, (*SYNCS, Role.ALLOCATE))).tolist():
        _sync(found, streams, call, told.get(int(calls.correlation[call])))
    staged = _staged(events)
    own = _own_work(events) & ~staged
    for number in np.flatnonzero(own).tolist():
        found.add(int(work.call[number]), [number])
    costs = _Costs(calls, found.latest)
    _stage(found, costs, np.flatnonzero(staged))
    _full_queues(found, streams, costs)
    own_calls = np.zeros(len(calls), dtype=bool)
    own_calls[work.call[own | staged]] = True
    waits, awaited, why = np.array(found.pairs, dtype=np.intp).reshape(-1, 3).T
    staging = calls.end[waits] - work.begin[awaited]
    own_time = np.where(why == Edge.WAIT, costs.cost_ns[waits], 0)
    source, target = events.work_moments[awaited], events.call_moments[waits] + 1
    lags = np.where(why == Edge.STAGE, staging, own_time)
    return CallWaits(
        edges=edges_of(why, source + (why != Edge.STAGE), target, lags),
        cost_ns=costs.cost_ns,
        waited_ns=costs.waited_ns,
        own_work=own_calls,
        inferred=found.inferred,
    )


class StreamOrder:
    """The work of each stream in its order, and when the host launched it."""

    def __init__(self, calls: Calls, work: Work) -> None:
        launched = np.where(work.call == NO_CALL, work.begin, calls.begin[work.call])
        self.members = [np.flatnonzero(work.stream == s) for s in range(len(work.stream_ids))]
        self.launched = [np.maximum.accumulate(launched[m]) for m in self.members]
        self.numbers = {stream: n for n, (_, stream) in enumerate(work.stream_ids)}
        self._ends = work.end

    def last_before(self, stream: int, moment: int) -> int | None:
        """The last work of a stream that was launched before a moment."""
        at = int(np.searchsorted(self.launched[stream], moment, side="left")) - 1
        return int(self.members[stream][at]) if at >= 0 else None

    def all_last_before(self, moment: int) -> Indices:
        """The same of all streams."""
        found = (self.last_before(n, moment) for n in range(len(self.members)))
        return np.array([each for each in found if each is not None], dtype=np.intp)

    def ended_last(self, launched: int, moment: int) -> int | None:
        """The work launched before one moment that ended last before another."""
        best: int | None = None
        for members, launches in zip(self.members, self.launched, strict=True):
            early = members[: int(np.searchsorted(launches, launched, side="left"))]
            at = int(np.searchsorted(self._ends[early], moment, side="right")) - 1
            if at >= 0 and (best is None or self._ends[early[at]] > self._ends[best]):
                best = int(early[at])
        return best


def _sync(found: _Found, streams: StreamOrder, call: int, told: Awaited | None) -> None:
    """The waits of one call that synchronises."""
    calls, work = found.events.calls, found.events.work
    begin, end, role = int(calls.begin[call]), int(calls.end[call]), calls.role[call]
    if role == Role.SYNC_EVENT and (told is None or told.stream is None):
        awaited = streams.ended_last(begin, end)
        inside = awaited is not None and work.end[awaited] >= begin
        found.add(call, [awaited] if inside and awaited is not None else [])
        found.inferred += 1
        return
    numbers = range(len(streams.members))
    known = None if told is None or told.stream is None else streams.numbers.get(told.stream)
    last = (streams.last_before(n, begin) for n in (numbers if known is None else [known]))
    awaited_work = [each for each in last if each is not None and work.end[each] <= end]
    if role == Role.SYNC_STREAM and known is None and len(streams.members) > 1:
        found.inferred += 1
        awaited_work = sorted(awaited_work, key=lambda each: work.end[each])[-1:]
    found.add(call, awaited_work)


def _own_work(events: StepEvents) -> NDArray[np.bool_]:
    """For each work whether the call that launched it waited for it."""
    calls, work = events.calls, events.work
    known = work.call != NO_CALL
    over = known & (work.end <= calls.end[work.call])
    launched = known & np.isin(calls.role[work.call], (Role.LAUNCH, Role.GRAPH))
    blocking = over[launched].sum() > BLOCKING_SHARE * max(int(launched.sum()), 1)
    staged = work.where(lambda each: isinstance(each, Copy) and each.pageable)
    plain = np.fromiter((calls.name[c] == "cudaMemcpy" for c in work.call), bool, len(work))
    waiting: NDArray[np.bool_] = over & (staged | (known & plain) | (launched & blocking))
    return waiting


def _staged(events: StepEvents) -> NDArray[np.bool_]:
    """For each work whether it copies memory that is not pinned while its call lasts."""
    calls, work = events.calls, events.work
    kept = work.where(
        lambda each: isinstance(each, Copy) and each.pageable and each.kind is CopyKind.H2D
    )
    found: NDArray[np.bool_] = kept & (work.call != NO_CALL)
    return found & (work.begin <= calls.end[work.call])


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
        self._calls = calls
        self.cost_ns = calls.end - calls.begin
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
        length = int(self._calls.end[call] - self._calls.begin[call])
        self.cost_ns[call] = cost
        self.waited_ns[call] = max(length - cost, 0)


def _full_queues(found: _Found, streams: StreamOrder, costs: _Costs) -> None:
    """Launches into a full queue wait until the device has done the oldest in it."""
    calls, work = found.events.calls, found.events.work
    lengths = calls.end - calls.begin
    for members in streams.members:
        first = members[np.flatnonzero(np.diff(work.call[members], prepend=NO_CALL - 1))]
        first = first[work.call[first] != NO_CALL]
        if not len(first):
            continue
        launching = work.call[first]
        ended = np.searchsorted(np.sort(work.end[first]), calls.begin[launching], side="right")
        waiting = np.arange(len(first)) - ended
        usual = _usual(calls, launching, waiting < LEAST_FULL)
        limit = _limit(waiting, lengths[launching] > LONG_CALL * usual)
        for place in np.flatnonzero(waiting >= limit - SLACK).tolist():
            call = int(launching[place])
            if not found.latest[call] and calls.role[call] != Role.COPY:
                costs.set(call, min(int(usual[place]), int(lengths[call])))
        for place in range(limit, len(first)):
            found.add(int(launching[place]), [int(first[place - limit])], Edge.QUEUE)


def _usual(calls: Calls, launching: Indices, free: NDArray[np.bool_]) -> Times:
    """What launches of the same name take if the queue has places: the median."""
    lengths = (calls.end - calls.begin)[launching]
    names = np.unique([calls.name[call] for call in launching.tolist()], return_inverse=True)[1]
    usual = lengths.copy()
    for name in range(names.max() + 1):
        own = names == name
        chosen = own & free if (own & free).any() else own
        usual[own] = int(np.median(lengths[chosen]))
    return usual


def _limit(waiting: Times, long: NDArray[np.bool_]) -> int:
    """How many launches a stream's queue holds."""
    full = waiting[long & (waiting >= LEAST_FULL)]
    return int(np.median(full)) if len(full) else FULL_QUEUE
