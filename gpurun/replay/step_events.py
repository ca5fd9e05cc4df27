"""The calls and the device's work of the steps that are replayed, as numpy columns."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpurun.timeline.columns import numbers_of, selected
from gpurun.timeline.device_work import busiest_device
from gpurun.timeline.model import Copy, Group, Kernel, RuntimeCall, Timeline
from gpurun.timeline.runtime_calls import launches_of, role_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpurun.timeline.time_intervals import Times

    Indices = NDArray[np.intp]

MOST_EVENTS = 300_000
"""Calls and device work of one replay: the last steps that fit are replayed. One replay of so many
takes a second."""
FEWEST_STEPS = 2
"""The first step only fills the device's queue: its end begins the time that is compared."""
NO_CALL = -1


class Edge(enum.IntEnum):
    """Why one moment comes after another."""

    START = 0
    """What is there at the begin of the graph."""
    PAUSE = 1
    """The host's own work between two calls of a thread."""
    HANDOVER = 2
    """The same between calls of two threads, one of which waits for the other."""
    CALL = 3
    """A call's own time."""
    WAIT = 4
    """A call waits for the device."""
    QUEUE = 5
    """A launch waits for a place in the queue."""
    STAGE = 6
    """A call copies memory that is not pinned, while the device takes it."""
    LAUNCH = 7
    STREAM = 8
    EVENT = 9
    RUN = 10
    """A kernel or a copy runs."""
    BATCH = 11
    """A batch is ready so long after the one before."""
    ARRIVAL = 12
    """The last rank arrives at a collective so long after the end of the one before."""


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

    def where(self, keep: NDArray[np.bool_] | Indices) -> Edges:
        """Those that are kept, in this order."""
        return Edges(self.source[keep], self.target[keep], self.lag_ns[keep], self.kind[keep])


def joined_edges(parts: Sequence[Edges]) -> Edges:
    """All edges of several sets."""
    return Edges(
        np.concatenate([part.source for part in parts]),
        np.concatenate([part.target for part in parts]),
        np.concatenate([part.lag_ns for part in parts]),
        np.concatenate([part.kind for part in parts]),
    )


def edges_of(
    kind: Edge | Indices,
    source: Indices | int,
    target: Indices,
    lag_ns: Times | int,
    keep: NDArray[np.bool_] | None = None,
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

    `stream`: numbers from 0, one a stream and device. `call`: place of the launching call among the
    calls, `NO_CALL` where it is not recorded. `records`: what the timeline holds of each.
    """

    begin: Times
    end: Times
    stream: Indices
    call: Indices
    on_device: NDArray[np.bool_]
    records: Sequence[Kernel | Copy]
    stream_ids: Sequence[tuple[int, int]]
    """Device and stream of each number."""
    without_launch: int
    """Work of which no launch is recorded, before these steps either."""

    def __len__(self) -> int:
        return len(self.begin)

    def where(self, of: Any) -> NDArray[np.bool_]:
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


def step_events(timeline: Timeline) -> StepEvents:
    """The events of the last steps; `NotReplayable` if the timeline lacks a part."""
    begins, ends = _steps(timeline)
    calls, kernels = timeline.runtime_calls, timeline.kernels
    if not calls:
        raise NotReplayable("no calls of CUDA were recorded")
    if not kernels:
        raise NotReplayable("no work of a device was recorded")
    call_begins = numbers_of(calls, "begin_ns")
    first = _first_step(begins, ends, call_begins, timeline)
    inside = (call_begins >= begins[first]) & (call_begins <= ends[-1])
    if not inside.any():
        raise NotReplayable("no call of CUDA lies in a marked step")
    chosen = _Chosen(selected(calls, inside))
    correlations = numbers_of(calls, "correlation")
    before, after = (correlations[o] for o in (call_begins < begins[first], call_begins > ends[-1]))
    work = _work(timeline, chosen, int(begins[first]), int(ends[-1]), before, after)
    if (chosen.calls.end < chosen.calls.begin).any() or (work.end < work.begin).any():
        raise NotReplayable("something ends before it begins: a clock jumped")
    return StepEvents(chosen.calls, work, ends[first:])


def _steps(timeline: Timeline) -> tuple[Times, Times]:
    """Begin and end of each step; one that lies inside another is no step."""
    steps = timeline.steps or ()
    begins, ends = numbers_of(steps, "begin_ns"), numbers_of(steps, "end_ns")
    order = np.lexsort((-begins, ends))
    begins, ends = begins[order], ends[order]
    latest = np.maximum.accumulate(begins) if len(begins) else begins
    outer = (begins == latest) & (np.diff(ends, prepend=ends[0] - 1) > 0) if len(ends) else []
    begins, ends = begins[outer], ends[outer]
    if len(begins) < FEWEST_STEPS:
        raise NotReplayable(f"{len(begins)} steps are marked, and a replay needs {FEWEST_STEPS}")
    return begins, ends


def _first_step(begins: Times, ends: Times, calls: Times, timeline: Timeline) -> int:
    """The first of the last steps that fit."""
    counts = np.zeros(len(begins), dtype=np.int64)
    for times in (calls, *(numbers_of(e or (), "begin_ns") for e in _work_of(timeline))):
        ordered = np.sort(times)
        counts += np.searchsorted(ordered, ends[-1]) - np.searchsorted(ordered, begins)
    first = int(np.argmax(counts <= MOST_EVENTS))
    if counts[first] > MOST_EVENTS or len(begins) - first < FEWEST_STEPS:
        raise NotReplayable(f"a step has over {MOST_EVENTS // FEWEST_STEPS:,} events")
    return first


def _work_of(timeline: Timeline) -> tuple[Sequence[Kernel] | None, Sequence[Copy] | None]:
    return timeline.kernels, timeline.copies


class _Chosen:
    """The calls of the steps. One inside another of its thread is a part of that."""

    def __init__(self, calls: Sequence[RuntimeCall]) -> None:
        self._correlations = numbers_of(calls, "correlation")
        outer, kept = np.arange(len(calls)), np.ones(len(calls), dtype=bool)
        last: dict[int, tuple[int, int]] = {}
        for number, call in enumerate(calls):
            holding, until = last.get(call.thread, (number, call.begin_ns))
            kept[number] = call.begin_ns >= until
            outer[number] = number if kept[number] else holding
            if kept[number] or call.end_ns > until:
                last[call.thread] = (int(outer[number]), call.end_ns)
        self._place = (np.cumsum(kept) - 1)[outer]
        own = selected(calls, kept)
        names = [call.name for call in own]
        self.calls = Calls(
            begin=numbers_of(own, "begin_ns"),
            end=numbers_of(own, "end_ns"),
            thread=numbers_of(own, "thread"),
            correlation=numbers_of(own, "correlation"),
            name=names,
            role=np.fromiter((role_of(name) for name in names), np.int8, len(names)),
        )

    def launching(self, wanted: Times) -> Indices:
        """The call of each correlation, `NO_CALL` where it is not among these."""
        places, known = launches_of(wanted, self._correlations)
        return np.where(known, self._place[places], NO_CALL)


def _work(
    timeline: Timeline, chosen: _Chosen, begin: int, end: int, before: Times, after: Times
) -> Work:
    """The work that these calls launched, and what else ran in their time."""
    found: list[Kernel | Copy] = []
    for events in _work_of(timeline):
        times = numbers_of(events or (), "begin_ns")
        correlations = numbers_of(events or (), "correlation")
        own = chosen.launching(correlations) != NO_CALL
        other = (times >= begin) & (times <= end) & ~np.isin(correlations, after)
        early = np.isin(correlations, before) & (times < begin)
        found += selected(events or (), (own | other) & ~early)
    if not found:
        raise NotReplayable("no work of a device lies in a marked step")
    found.sort(key=lambda each: (each.begin_ns, each.end_ns))
    streams = [(each.device, each.stream) for each in found]
    numbers = {stream: number for number, stream in enumerate(dict.fromkeys(streams))}
    kernels = [each for each in found if isinstance(each, Kernel)]
    device = busiest_device(kernels) if kernels else found[0].device
    correlations = numbers_of(found, "correlation")
    call = chosen.launching(correlations)
    return Work(
        begin=numbers_of(found, "begin_ns"),
        end=numbers_of(found, "end_ns"),
        stream=np.fromiter((numbers[stream] for stream in streams), np.intp, len(found)),
        call=call,
        on_device=np.fromiter((each.device == device for each in found), bool, len(found)),
        records=found,
        stream_ids=tuple(numbers),
        without_launch=int(((call == NO_CALL) & ~np.isin(correlations, before)).sum()),
    )


def is_collective(record: Kernel | Copy) -> bool:
    """It exchanges data between ranks."""
    return isinstance(record, Kernel) and record.group is Group.COMMUNICATION
