"""What two profiles spent a step on, and by how much that differs.

Without a replay this is all that can be said. The device's time adds up to the step: it is busy
with something, or idle for some cause. So does the split of the step on the host's clock.

A kernel's signature changes with its template arguments, and a compiled one is numbered anew in
each compilation. So kernels are the same if their short names are, without that number.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import PurePath

import numpy as np

from gpurun.formatting.kernel_names import short_kernel_name
from gpurun.records.diagnosis import ChangeKind, KernelMatch, ProfileChange, ThingKind
from gpurun.records.finding import Finding
from gpurun.records.profile_figures import ProfileFigures
from gpurun.records.result import RunResult, StepSplit
from gpurun.replay.replay_check import Replayed, StepTimes
from gpurun.timeline.columns import Times, begins, ends
from gpurun.timeline.device_work import device_work, exchanging
from gpurun.timeline.model import Copy, CopyKind, Kernel, Timeline
from gpurun.timeline.time_intervals import Intervals

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
_COMPILED = re.compile(r"^(triton_\w*?)_\d+(de|d)?$")
"""Inductor ends the names of its kernels with their number in the compilation."""
_COPIES = {
    CopyKind.H2D: "host to device",
    CopyKind.D2H: "device to host",
    CopyKind.D2D: "on the device",
    CopyKind.SET: "memory filled",
    CopyKind.OTHER: "other copies",
}

Thing = tuple[ThingKind, str]


@dataclass(frozen=True)
class Spent:
    """Of one thing a step: milliseconds, calls where they count, and what of it explains the step.

    `own_ms`: in which nothing earlier ran; None: other things hold it already, or replays tell.
    """

    ms: float
    calls: float = 0.0
    own_ms: float | None = None


@dataclass(frozen=True)
class ProfiledSide:
    """One of the profiles. `timeline` and `figures`: of one rank, of its steady steps.

    `times`: where steps that were not profiled are known. `workers`: batches come from worker
    processes. `replayed`: the replay with these, where there is one already. `findings`: the causes
    that the profile shows. `notes`: what could not be seen.
    """

    subject: str
    timeline: Timeline | None = None
    figures: ProfileFigures = field(default_factory=ProfileFigures)
    times: StepTimes | None = None
    workers: bool = False
    replayed: Replayed | None = None
    result: RunResult | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def step_ms(self) -> float | None:
        """The mean profiled step; None where no steps are marked."""
        return self.figures.step_ms

    @property
    def kernels(self) -> Sequence[Kernel]:
        """Those of its timeline; empty where none were recorded."""
        return () if self.timeline is None else self.timeline.kernels or ()


@lru_cache(maxsize=65536)
def kernel_name(signature: str) -> str:
    """The name by which a kernel is found in another profile."""
    return _COMPILED.sub(r"\1", short_kernel_name(signature))


def thing_of(record: Kernel | Copy) -> Thing:
    """The kind and name of a device's work."""
    if isinstance(record, Copy):
        memory = {None: "", True: ", pageable", False: ", pinned"}[record.pageable]
        told = "" if record.kind is CopyKind.SET else memory
        return ThingKind.COPY, f"{_COPIES[record.kind]}{told}"
    return ThingKind.KERNEL, kernel_name(record.name)


def renamed(
    before: ProfiledSide, after: ProfiledSide
) -> tuple[int | None, tuple[KernelMatch, ...]]:
    """How many names of kernels both have, and those whose signatures differ.

    None where one profile has no kernels.
    """
    one, other = (_signatures(side.kernels) for side in (before, after))
    if not one or not other:
        return None, ()
    both = [name for name in one if name in other]
    found = (KernelMatch(n, tuple(sorted(one[n])), tuple(sorted(other[n]))) for n in both)
    return len(both), tuple(match for match in found if match.before != match.after)


def _signatures(kernels: Sequence[Kernel]) -> Mapping[str, set[str]]:
    """The signatures of each name."""
    found: dict[str, set[str]] = defaultdict(set)
    for signature in dict.fromkeys(kernel.name for kernel in kernels):
        found[kernel_name(signature)].add(signature)
    return found


def profile_change(
    thing: Thing, before: Spent | None, after: Spent | None, explained_ms: float | None
) -> ProfileChange:
    """How a thing changed; None: a side has no such thing."""
    one, other = (None if each is None else each.ms for each in (before, after))
    calls, later = (None if each is None else each.calls or None for each in (before, after))
    change = _how_changed(before, after)
    return ProfileChange(*thing, change, one, other, calls, later, explained_ms)


def _how_changed(before: Spent | None, after: Spent | None) -> ChangeKind:
    if before is None or after is None:
        return ChangeKind.ADDED if before is None else ChangeKind.LOST
    if before.calls and after.calls and before.ms > 0 and after.ms > 0:
        calls, time = after.calls / before.calls, after.ms / before.ms
        if abs(calls - 1) > abs(time / calls - 1):
            return ChangeKind.MORE if calls > 1 else ChangeKind.FEWER
    if before.ms == after.ms:
        return ChangeKind.SAME
    return ChangeKind.SLOWER if after.ms > before.ms else ChangeKind.FASTER


def _changes(
    before: Mapping[Thing, Spent], after: Mapping[Thing, Spent]
) -> tuple[ProfileChange, ...]:
    """The change of each thing; it explains what it takes longer by itself."""
    nothing, found = Spent(0.0, own_ms=0.0), []
    for thing in dict.fromkeys([*before, *after]):
        one, other = before.get(thing), after.get(thing)
        own, later = (one or nothing).own_ms, (other or nothing).own_ms
        explained = None if own is None or later is None else later - own
        found.append(profile_change(thing, one, other, explained))
    return tuple(found)


def device_changes(before: ProfiledSide, after: ProfiledSide) -> tuple[ProfileChange, ...]:
    """What the devices did longer or shorter; what ran at the same time counts once."""
    return _changes(_on_device(before.timeline), _on_device(after.timeline))


def _on_device(timeline: Timeline | None) -> Mapping[Thing, Spent]:
    """The busiest device's time by thing: kernels first, then what runs while no kernel computes.

    An exchange or a copy that a kernel hides costs the step nothing.
    """
    work = None if timeline is None else device_work(timeline)
    if timeline is None or work is None:
        return {}
    kernels, copies = work.kernels, work.copies
    places: dict[Thing, int] = {}
    both: Iterator[Kernel | Copy] = chain(kernels, copies)
    numbers = (places.setdefault(thing_of(record), len(places)) for record in both)
    things = np.fromiter(numbers, np.intp, len(kernels) + len(copies))
    starts, stops = (
        np.clip(np.concatenate([of(kernels), of(copies)]), work.begin_ns, work.end_ns)
        for of in (begins, ends)
    )
    late = np.append(exchanging(kernels), np.ones(len(copies), dtype=bool))
    own = np.zeros(len(things), dtype=np.int64)
    busy = Intervals.union(starts[:0], stops[:0])
    for chosen in (np.flatnonzero(~late), np.flatnonzero(late)):
        order = chosen[np.argsort(starts[chosen], kind="stable")]
        own[order] = _own_time(starts[order], stops[order], busy)
        busy = Intervals.union(starts[order], stops[order])
    steps = len(timeline.steps or ()) or 1
    sums = (np.bincount(things, each) / steps for each in (stops - starts, None, own))
    rows = zip(places, *(each.tolist() for each in sums), strict=True)
    return {thing: Spent(ns / 1e6, calls, own_ns / 1e6) for thing, ns, calls, own_ns in rows}


def _own_time(starts: Times, stops: Times, busy: Intervals) -> Times:
    """Of each interval, in the order of their begin, what neither `busy` nor earlier ones cover."""
    earlier = np.maximum.accumulate(np.append(starts[:1], stops))[:-1]
    alone = np.minimum(np.maximum(starts, earlier), stops)
    own: Times = (stops - alone) - busy.covered(alone, stops)
    return own


def _in_both(table: Mapping[str, str], before: object, after: object) -> list[dict[str, float]]:
    """The figures of a table that both have, by their names in words."""
    known = [key for key in table if None not in (getattr(before, key), getattr(after, key))]
    return [{table[key]: getattr(each, key) for key in known} for each in (before, after)]


def _named(kind: ThingKind, times: Mapping[str, float]) -> Mapping[Thing, Spent]:
    return {(kind, name): Spent(ms, own_ms=ms) for name, ms in times.items()}


def idle_changes(before: ProfileFigures, after: ProfileFigures) -> tuple[ProfileChange, ...]:
    """The device's idle time by the causes that both know; no time for a cause is none of it."""
    if before.idle is None or after.idle is None:
        return ()
    both, sides = _in_both(IDLE, before.idle, after.idle), []
    for figures, idle, shares in zip((before, after), (before.idle, after.idle), both, strict=True):
        shares[NO_CAUSE] = idle.total - sum(shares.values())
        times = {name: share * (figures.step_ms or 0.0) for name, share in shares.items()}
        sides.append(_named(ThingKind.IDLE, {n: ms for n, ms in times.items() if ms > LEAST_MS}))
    return _changes(*sides)


def operator_changes(before: Timeline | None, after: Timeline | None) -> tuple[ProfileChange, ...]:
    """The own time of torch's operators on the host; none where a profile has none."""
    sides = [_operators(each) for each in (before, after) if each is not None]
    return _changes(*sides) if len(sides) == 2 and all(sides) else ()


def _operators(timeline: Timeline) -> Mapping[Thing, Spent]:
    found: dict[Thing, Spent] = {}
    steps = len(timeline.steps or ()) or 1
    for each in timeline.operators or ():  # one for each set of shapes
        thing = ThingKind.OPERATOR, each.name
        before = found.get(thing, Spent(0.0))
        ms = before.ms + each.self_ns / steps / 1e6
        found[thing] = Spent(ms, before.calls + each.calls / steps, ms)
    return found


def function_changes(before: ProfiledSide, after: ProfiledSide) -> tuple[ProfileChange, ...]:
    """Python's functions, found again by file and name: lines move between commits.

    One without a sample took no time that samples could see.
    """
    sides = [_functions(side) for side in (before, after)]
    if not all(sides):
        return ()
    lines = {key: line for side in sides for key, (_, line) in side.items()}
    names = {(file, name): f"{name} ({file}:{line})" for (file, name), line in lines.items()}
    times = ({n: side.get(key, (0.0,))[0] for key, n in names.items()} for side in sides)
    return _changes(*(_named(ThingKind.FUNCTION, each) for each in times))


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


def split_changes(before: StepSplit, after: StepSplit) -> tuple[ProfileChange, ...]:
    """The parts of the mean step that both runs measured."""
    return _changes(*(_named(ThingKind.PART, t) for t in _in_both(PARTS, before, after)))
