"""What two profiles spent a step on, and by how much that differs.

Without a replay this is all that can be said. The device's time adds up to the step: it is busy
with something, or idle for some cause. So does the split of the step on the host's clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from gpurun.records.diagnosis import ProfileChange, ThingKind
from gpurun.records.profile_figures import ProfileFigures
from gpurun.records.result import StepSplit
from gpurun.replay.compared_names import Thing, profile_change, thing_of
from gpurun.replay.profiled_side import ProfiledSide
from gpurun.timeline.device_work import (
    begins,
    busiest_device,
    copies_on,
    ends,
    on_device,
)
from gpurun.timeline.model import Copy, Group, Kernel, Timeline
from gpurun.timeline.time_intervals import Intervals

if TYPE_CHECKING:
    from gpurun.timeline.time_intervals import Times

IDLE = {
    "data": "the script waits for its loader",
    "sync": "the host had waited for the device",
    "launch": "the next kernel was launched too late",
    "host": "the host did something else for longer than 0.1 ms",
    "exchange": "ranks exchange data on the host",
    "other": "launched work did not run yet",
}
"""The causes of idle time, of `IdleTime`."""
NO_CAUSE = "for a cause that was not recorded"
LEAST_MS = 1e-6
"""A nanosecond, by which clocks count."""
PARTS = {
    "data_wait_ms": "waiting for data",
    "host_to_device_copy_ms": "copies to the device",
    "forward_ms": "forward",
    "backward_ms": "backward",
    "optimizer_ms": "optimizer",
    "rest_ms": "the rest of the step",
}
"""The parts of `StepSplit`."""


@dataclass(frozen=True)
class _Spent:
    """Of one thing in the window: nanoseconds, those in which nothing earlier ran, and calls."""

    nanoseconds: float
    own_ns: float
    calls: float


def device_changes(before: Timeline, after: Timeline) -> tuple[ProfileChange, ...]:
    """What the devices did longer or shorter; what ran at the same time counts once."""
    spent = [_spent(timeline) for timeline in (before, after)]
    steps = [len(timeline.steps or ()) or 1 for timeline in (before, after)]
    found = []
    for kind, name in dict.fromkeys([*spent[0], *spent[1]]):
        sides = [side.get((kind, name)) for side in spent]
        told = [
            None if s is None else (s.nanoseconds / n / 1e6, s.calls / n)
            for s, n in zip(sides, steps, strict=True)
        ]
        own = [0.0 if s is None else s.own_ns / n for s, n in zip(sides, steps, strict=True)]
        found.append(profile_change((kind, name), told[0], told[1], (own[1] - own[0]) / 1e6))
    return tuple(found)


def _spent(timeline: Timeline) -> Mapping[Thing, _Spent]:
    """The busiest device's time by thing: kernels first, then what runs while no kernel computes.

    An exchange or a copy that a kernel hides costs the step nothing.
    """
    device = busiest_device(timeline.kernels or ())
    kernels, copies = on_device(timeline.kernels or (), device), copies_on(timeline, device)
    places: dict[Thing, int] = {}
    names: dict[str, str] = {}
    both: Iterator[Kernel | Copy] = chain(kernels, copies)
    numbers = (places.setdefault(thing_of(record, names), len(places)) for record in both)
    things = np.fromiter(numbers, np.intp, len(kernels) + len(copies))
    begin, end = timeline.window_begin_ns, timeline.window_end_ns
    starts = np.clip(np.concatenate([begins(kernels), begins(copies)]), begin, end)
    stops = np.clip(np.concatenate([ends(kernels), ends(copies)]), begin, end)
    late = np.ones(len(things), dtype=bool)
    late[: len(kernels)] = [kernel.group is Group.COMMUNICATION for kernel in kernels]
    own = np.zeros(len(things), dtype=np.int64)
    busy = Intervals.union(starts[:0], stops[:0])
    for chosen in (np.flatnonzero(~late), np.flatnonzero(late)):
        order = chosen[np.argsort(starts[chosen], kind="stable")]
        own[order] = _own_time(starts[order], stops[order], busy)
        busy = Intervals.union(starts[order], stops[order])
    sums = zip(*(np.bincount(things, each) for each in (stops - starts, own, None)), strict=True)
    return {thing: _Spent(*row) for thing, row in zip(places, sums, strict=True)}


def _own_time(starts: Times, stops: Times, busy: Intervals) -> Times:
    """Of each interval, in the order of their begin, what neither `busy` nor earlier ones cover."""
    if not len(starts):
        return starts
    earlier = np.concatenate([starts[:1], np.maximum.accumulate(stops)[:-1]])
    alone = np.minimum(np.maximum(starts, earlier), stops)
    own: Times = (stops - alone) - busy.covered(alone, stops)
    return own


def idle_changes(
    before: ProfileFigures, after: ProfileFigures, *, explaining: bool
) -> Iterator[ProfileChange]:
    """The device's idle time by cause. `explaining`: it counts by itself."""
    sides = [figures for figures in (before, after) if figures.idle and figures.step_ms is not None]
    if len(sides) < 2:
        return
    steps = [figures.step_ms or 0.0 for figures in sides]
    known = [0.0, 0.0]
    for cause, name in IDLE.items():
        shares = [getattr(figures.idle, cause) for figures in sides]
        if None not in shares:
            known = [sum(each) for each in zip(known, shares, strict=True)]
            yield from _idle_change(name, shares, steps, explaining)
    totals = [figures.idle.total for figures in sides if figures.idle]
    rest = [max(all_of_it - each, 0.0) for all_of_it, each in zip(totals, known, strict=True)]
    yield from _idle_change(NO_CAUSE, rest, steps, explaining)


def _idle_change(
    name: str, shares: Sequence[float], steps_ms: Sequence[float], explaining: bool
) -> Iterator[ProfileChange]:
    """`shares`: of the profiled time. Nothing where neither device idled for this cause."""
    one, other = (share * step for share, step in zip(shares, steps_ms, strict=True))
    if max(one, other) > LEAST_MS:
        told = (
            (one, None) if one > LEAST_MS else None,
            (other, None) if other > LEAST_MS else None,
        )
        yield profile_change((ThingKind.IDLE, name), *told, other - one if explaining else None)


def operator_changes(
    before: Timeline | None, after: Timeline | None, *, explaining: bool
) -> Iterator[ProfileChange]:
    """The own time of torch's operators on the host; none where a profile has none."""
    if before is None or after is None or not before.operators or not after.operators:
        return
    sides = [
        {each.name: (each.self_ns / n / 1e6, each.calls / n) for each in timeline.operators or ()}
        for timeline in (before, after)
        for n in [len(timeline.steps or ()) or 1]
    ]
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        one, other = (side.get(name) for side in sides)
        more = (other or (0.0, 0.0))[0] - (one or (0.0, 0.0))[0]
        yield profile_change((ThingKind.OPERATOR, name), one, other, more if explaining else None)


def function_changes(before: ProfiledSide, after: ProfiledSide) -> Iterator[ProfileChange]:
    """Python's functions, found again by file and name: lines move between commits.

    One without a sample took no time that samples could see.
    """
    sides = [_functions(side) for side in (before, after)]
    if not all(sides):
        return
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        (one, earlier), (other, later) = (side.get(key, (0.0, 0)) for side in sides)
        name = f"{key[1]} ({key[0]}:{later or earlier})"
        yield profile_change((ThingKind.FUNCTION, name), (one, None), (other, None), None)


def _functions(side: ProfiledSide) -> Mapping[tuple[str, str], tuple[float, int]]:
    """Milliseconds a step in each function's own lines, and the line with most of it."""
    timeline, step = side.timeline, side.step_ms
    seconds = None if timeline is None else timeline.host_sampled_seconds
    if timeline is None or not seconds or step is None:
        return {}
    found: dict[tuple[str, str], tuple[float, int]] = {}
    for each in sorted(timeline.host_functions or (), key=lambda each: each.self_seconds):
        key = PurePath(each.file).name, each.function
        spent = found.get(key, (0.0, 0))[0] + each.self_seconds / seconds * step
        found[key] = spent, each.line
    return {key: told for key, told in found.items() if told[0] > 0}


def split_changes(before: StepSplit, after: StepSplit) -> Iterator[ProfileChange]:
    """The parts of the mean step that both runs measured."""
    for field, name in PARTS.items():
        one, other = getattr(before, field), getattr(after, field)
        if one is not None and other is not None:
            yield profile_change((ThingKind.PART, name), (one, None), (other, None), other - one)
