"""The calls and the device's work of the steps that are replayed, as numpy columns."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpurun.timeline.columns import Indices, Mask, Times, begins, ends, numbers_of, selected
from gpurun.timeline.device_work import busiest_device
from gpurun.timeline.model import Copy, Group, Kernel, RuntimeCall, Timeline
from gpurun.timeline.runtime_calls import launches_of, role_of

MOST_EVENTS = 300_000
"""Calls and device work of one replay: the last steps that fit are replayed. One replay of so many
takes a second."""
FEWEST_STEPS = 2
"""The first step only fills the device's queue: its end begins the time that is compared."""
NO_CALL = -1


class Edge(enum.IntEnum):
    """Why one moment comes after another."""

    START = 0  # it is there at the begin of the graph
    PAUSE = 1  # the host's own work between two calls of a thread
    HANDOVER = 2  # the same between calls of two threads, one of which waits for the other
    CALL = 3  # a call's own time
    WAIT = 4  # a call waits for the device
    QUEUE = 5  # a launch waits for a place in the queue
    STAGE = 6  # a call copies memory that is not pinned, while the device takes it
    LAUNCH = 7
    STREAM = 8
    EVENT = 9
    RUN = 10  # a kernel or a copy runs
    BATCH = 11  # a batch is ready so long after the one before
    ARRIVAL = 12  # the last rank arrives at a collective so long after the end of the one before


class NotReplayable(Exception):
    """Why a recording has no graph, in a sentence's part."""


@dataclass(frozen=True)
class Edges:
    """`target` comes at least `lag_ns` after `source`.

    Moments: 0 is the begin, then begin and end of each call, then of each work.
    """

    source: Indices
    target: Indices
    lag_ns: Times
    kind: NDArray[np.int8]

    def where(self, keep: Mask | Indices) -> Edges:
        """Those that are kept, in this order."""
        return Edges(self.source[keep], self.target[keep], self.lag_ns[keep], self.kind[keep])


def joined_edges(parts: Sequence[Edges]) -> Edges:
    """All edges of several sets."""
    names = [field.name for field in fields(Edges)]
    return Edges(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def edges_of(
    kind: Edge | Indices,
    source: Indices | int,
    target: Indices,
    lag_ns: Times | int,
    keep: Mask | None = None,
) -> Edges:
    """Edges of one kind, or of a kind each; those that are kept. One source or lag may be all."""
    sources, lags, kinds = (np.broadcast_to(x, target.shape) for x in (source, lag_ns, kind))
    found = Edges(sources, target, lags, kinds.astype(np.int8))
    return found if keep is None else found.where(keep)


@dataclass(frozen=True)
class Calls:
    """Calls of CUDA in the order of their begin."""

    begin: Times
    end: Times
    thread: Times
    correlation: Times
    name: Sequence[str]
    role: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.begin)


@dataclass(frozen=True)
class Work:
    """Kernels, copies and fills in the order of their begin.

    `stream`: numbers from 0, one a stream and device (`stream_ids`). `call`: place of the launching
    call among the calls, `NO_CALL` where it is not recorded. `records`: what the timeline holds of
    each. `without_launch`: work of which no launch is recorded, before these steps either.
    """

    begin: Times
    end: Times
    stream: Indices
    call: Indices
    on_device: Mask
    records: Sequence[Kernel | Copy]
    stream_ids: Sequence[tuple[int, int]]
    without_launch: int

    def __len__(self) -> int:
        return len(self.begin)

    def where(self, of: Any) -> Mask:
        """For each record whether `of` is true of it."""
        return np.fromiter((bool(of(each)) for each in self.records), bool, len(self))


@dataclass(frozen=True)
class StepEvents:
    """What the graph is made of. `step_ends`: when the steps end on the host, ascending."""

    calls: Calls
    work: Work
    step_ends: Times

    @property
    def begin(self) -> int:
        """When the first of them begins, in nanoseconds."""
        return int(min(self.calls.begin[0], self.work.begin[0]))

    @property
    def call_moments(self) -> Indices:
        """The begin of each call among the moments; its end is the next moment."""
        return 1 + 2 * np.arange(len(self.calls))

    @property
    def work_moments(self) -> Indices:
        """The same of each work."""
        return 1 + 2 * (len(self.calls) + np.arange(len(self.work)))

    @cached_property
    def streams(self) -> StreamOrder:
        """The order of the work in its streams."""
        return StreamOrder(self.calls, self.work)


class StreamOrder:
    """The work of each stream in its order, and when the host launched it."""

    def __init__(self, calls: Calls, work: Work) -> None:
        launched = np.where(work.call == NO_CALL, work.begin, calls.begin[work.call])
        order = np.argsort(work.stream, kind="stable")
        bounds = np.searchsorted(work.stream[order], np.arange(1, len(work.stream_ids)))
        self.members = np.split(order, bounds)
        self.launched = [np.maximum.accumulate(launched[m]) for m in self.members]
        self.numbers = {stream: n for n, (_, stream) in enumerate(work.stream_ids)}
        self._ends = [work.end[members] for members in self.members]

    def last_before(self, stream: int, moment: int) -> int | None:
        """The last work of a stream that was launched before a moment."""
        at = int(np.searchsorted(self.launched[stream], moment, side="left")) - 1
        return int(self.members[stream][at]) if at >= 0 else None

    def all_last_before(self, moment: int, stream: int | None = None) -> list[int]:
        """The same of all streams, or of the one that is named."""
        streams = range(len(self.members)) if stream is None else [stream]
        found = (self.last_before(each, moment) for each in streams)
        return [each for each in found if each is not None]

    def ended_last(self, launched: int, moment: int) -> int | None:
        """The work launched before one moment that ended last before another."""
        found = []
        for members, launches, ended in zip(self.members, self.launched, self._ends, strict=True):
            early = int(np.searchsorted(launches, launched, side="left"))
            at = int(np.searchsorted(ended[:early], moment, side="right")) - 1
            if at >= 0:
                found.append((int(ended[at]), int(members[at])))
        return max(found, key=lambda each: each[0], default=(0, None))[1]


def step_events(timeline: Timeline) -> StepEvents:
    """The events of the last steps; `NotReplayable` if the timeline lacks a part."""
    starts, stops = _steps(timeline)
    calls = timeline.runtime_calls
    if not calls:
        raise NotReplayable("no calls of CUDA were recorded")
    if not timeline.kernels:
        raise NotReplayable("no work of a device was recorded")
    events: list[Sequence[Kernel | Copy]] = [timeline.kernels, timeline.copies or ()]
    first = _first_step(starts, stops, [begins(each) for each in (calls, *events)])
    window = int(starts[first]), int(stops[-1])
    at, correlations = begins(calls), numbers_of(calls, "correlation")
    inside = (at >= window[0]) & (at <= window[1])
    if not inside.any():
        raise NotReplayable("no call of CUDA lies in a marked step")
    own, places = _outer_calls(selected(calls, inside))
    call_of = correlations[inside], places
    outside = correlations[at < window[0]], correlations[at > window[1]]
    work = _work(events, call_of, window, outside)
    if (own.end < own.begin).any() or (work.end < work.begin).any():
        raise NotReplayable("something ends before it begins: a clock jumped")
    return StepEvents(own, work, stops[first:])


def _steps(timeline: Timeline) -> tuple[Times, Times]:
    """Begin and end of each step; one that lies inside another is no step."""
    starts, stops = begins(timeline.steps or ()), ends(timeline.steps or ())
    order = np.lexsort((-starts, stops))
    starts, stops = starts[order], stops[order]
    if len(starts):
        outer = starts == np.maximum.accumulate(starts)
        outer &= np.diff(stops, prepend=stops[0] - 1) > 0
        starts, stops = starts[outer], stops[outer]
    if len(starts) < FEWEST_STEPS:
        raise NotReplayable(f"{len(starts)} steps are marked, and a replay needs {FEWEST_STEPS}")
    return starts, stops


def _first_step(starts: Times, stops: Times, events: Sequence[Times]) -> int:
    """The first of the last steps that fit."""
    counts = np.zeros(len(starts), dtype=np.int64)
    for times in map(np.sort, events):
        counts += np.searchsorted(times, stops[-1]) - np.searchsorted(times, starts)
    first = int(np.argmax(counts <= MOST_EVENTS))
    if counts[first] > MOST_EVENTS or len(starts) - first < FEWEST_STEPS:
        raise NotReplayable(f"a step has over {MOST_EVENTS // FEWEST_STEPS:,} events")
    return first


def _outer_calls(calls: Sequence[RuntimeCall]) -> tuple[Calls, Indices]:
    """The calls, and the place of each among them: one inside another is a part of that."""
    outer, kept = np.arange(len(calls)), np.ones(len(calls), dtype=bool)
    last: dict[int, tuple[int, int]] = {}
    for number, call in enumerate(calls):
        holding, until = last.get(call.thread, (number, call.begin_ns))
        kept[number] = call.begin_ns >= until
        outer[number] = number if kept[number] else holding
        if kept[number] or call.end_ns > until:
            last[call.thread] = (int(outer[number]), call.end_ns)
    own = selected(calls, kept)
    names = [call.name for call in own]
    roles = np.fromiter((role_of(name) for name in names), np.int8, len(names))
    thread, correlation = (numbers_of(own, name) for name in ("thread", "correlation"))
    found = Calls(begins(own), ends(own), thread, correlation, names, roles)
    return found, (np.cumsum(kept) - 1)[outer]


def _work(
    events: Sequence[Sequence[Kernel | Copy]],
    call_of: tuple[Times, Indices],
    window: tuple[int, int],
    outside: tuple[Times, Times],
) -> Work:
    """The work that the calls launched, and what else ran in their time.

    `call_of`: correlations, and the call of each. `outside`: those before and after the window.
    """

    def launching(wanted: Times) -> Indices:
        places, known = launches_of(wanted, call_of[0])
        return np.where(known, call_of[1][places], NO_CALL)

    found: list[Kernel | Copy] = []
    for each in events:
        times, wanted = begins(each), numbers_of(each, "correlation")
        other = (times >= window[0]) & (times <= window[1]) & ~np.isin(wanted, outside[1])
        early = np.isin(wanted, outside[0]) & (times < window[0])
        found += selected(each, ((launching(wanted) != NO_CALL) | other) & ~early)
    if not found:
        raise NotReplayable("no work of a device lies in a marked step")
    found.sort(key=lambda each: (each.begin_ns, each.end_ns))
    streams = [(each.device, each.stream) for each in found]
    numbers = {stream: number for number, stream in enumerate(dict.fromkeys(streams))}
    kernels = [each for each in found if isinstance(each, Kernel)]
    device = busiest_device(kernels) if kernels else found[0].device
    wanted = numbers_of(found, "correlation")
    call = launching(wanted)
    return Work(
        begin=begins(found),
        end=ends(found),
        stream=np.fromiter((numbers[stream] for stream in streams), np.intp, len(found)),
        call=call,
        on_device=np.fromiter((each.device == device for each in found), bool, len(found)),
        records=found,
        stream_ids=tuple(numbers),
        without_launch=int(((call == NO_CALL) & ~np.isin(wanted, outside[0])).sum()),
    )


def is_collective(record: Kernel | Copy) -> bool:
    """It exchanges data between ranks."""
    return isinstance(record, Kernel) and record.group is Group.COMMUNICATION
