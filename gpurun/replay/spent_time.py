"""What two profiles spent a step on, and by how much that differs.

Without a replay this is all that can be said. The device's time adds up to the step: it is busy
with something, or idle for some cause. So does the split of the step on the host's clock.

A kernel's signature changes with its template arguments, and a compiled one is numbered anew in
each compilation. So kernels are the same if their short names are, without that number.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import PurePath

import numpy as np

from gpurun.formatting.kernel_names import short_kernel_name
from gpurun.records.diagnosis import ChangeKind, KernelMatch, ProfileChange, ThingKind
from gpurun.records.finding import Finding
from gpurun.records.profile_figures import ProfileFigures
from gpurun.records.result import RunResult
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
    before: Collection[str], after: Collection[str]
) -> tuple[int | None, tuple[KernelMatch, ...]]:
    """How many names both have, and those whose signatures differ. From all signatures.

    None where one profile has no kernels.
    """
    sides = [_by_name(before), _by_name(after)]
    if not all(sides):
        return None, ()
    both = [name for name in sides[0] if name in sides[1]]
    found = (KernelMatch(name, *(tuple(sorted(s[name])) for s in sides)) for name in both)
    return len(both), tuple(match for match in found if match.before != match.after)


def _by_name(signatures: Collection[str]) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for signature in signatures:
        found[kernel_name(signature)].add(signature)
    return found


def profile_change(
    thing: Thing, before: Spent | None, after: Spent | None, explained_ms: float | None
) -> ProfileChange:
    """How a thing changed; None: a side has no such thing."""
    return ProfileChange(
        kind=thing[0],
        name=thing[1],
        change=_how_changed(before, after),
        before_ms=None if before is None else before.ms,
        after_ms=None if after is None else after.ms,
        before_calls=None if before is None else before.calls or None,
        after_calls=None if after is None else after.calls or None,
        explained_ms=explained_ms,
    )


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


def _changes(
    before: Mapping[Thing, Spent], after: Mapping[Thing, Spent]
) -> Iterator[ProfileChange]:
    nothing = Spent(0.0, own_ms=0.0)
    for thing in dict.fromkeys([*before, *after]):
        one, other = before.get(thing), after.get(thing)
        own, later = (one or nothing).own_ms, (other or nothing).own_ms
        explained = None if own is None or later is None else later - own
        yield profile_change(thing, one, other, explained)


def device_changes(before: Timeline, after: Timeline) -> Iterator[ProfileChange]:
    """What the devices did longer or shorter; what ran at the same time counts once."""
    return _changes(_on_device(before), _on_device(after))


def _on_device(timeline: Timeline) -> Mapping[Thing, Spent]:
    """The busiest device's time by thing: kernels first, then what runs while no kernel computes.

    An exchange or a copy that a kernel hides costs the step nothing.
    """
    work = device_work(timeline)
    if work is None:
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
    if not len(starts):
        return starts
    earlier = np.concatenate([starts[:1], np.maximum.accumulate(stops)[:-1]])
    alone = np.minimum(np.maximum(starts, earlier), stops)
    own: Times = (stops - alone) - busy.covered(alone, stops)
    return own


def idle_changes(before: ProfileFigures, after: ProfileFigures) -> Iterator[ProfileChange]:
    """The device's idle time by cause."""
    both = (before, after)
    known = [c for c in IDLE if all(getattr(each.idle, c, None) is not None for each in both)]
    return _changes(*(_idle(figures, known) for figures in both))


def _idle(figures: ProfileFigures, causes: Sequence[str]) -> Mapping[Thing, Spent]:
    """None where the device did not idle for a cause."""
    if figures.idle is None or figures.step_ms is None:
        return {}
    shares = {IDLE[cause]: getattr(figures.idle, cause) for cause in causes}
    shares[NO_CAUSE] = figures.idle.total - sum(shares.values())
    times = {name: share * figures.step_ms for name, share in shares.items()}
    return {
        (ThingKind.IDLE, name): Spent(ms, own_ms=ms) for name, ms in times.items() if ms > LEAST_MS
    }


def operator_changes(before: Timeline | None, after: Timeline | None) -> Iterator[ProfileChange]:
    """The own time of torch's operators on the host; none where a profile has none."""
    sides = [_operators(each) for each in (before, after)]
    return _changes(*sides) if all(sides) else iter(())


def _operators(timeline: Timeline | None) -> Mapping[Thing, Spent]:
    if timeline is None:
        return {}
    steps = len(timeline.steps or ()) or 1
    found: dict[Thing, Spent] = {}
    for each in timeline.operators or ():  # one for each set of shapes
        thing = ThingKind.OPERATOR, each.name
        before = found.get(thing, Spent(0.0))
        ms = before.ms + each.self_ns / steps / 1e6
        found[thing] = Spent(ms, before.calls + each.calls / steps, ms)
    return found


def function_changes(before: ProfiledSide, after: ProfiledSide) -> Iterator[ProfileChange]:
    """Python's functions, found again by file and name: lines move between commits.

    One without a sample took no time that samples could see.
    """
    sides = [_functions(side) for side in (before, after)]
    lines = {key: line for side in sides for key, (_, line) in side.items()}
    if not all(sides):
        return iter(())
    spent = (
        {
            (ThingKind.FUNCTION, f"{name} ({file}:{line})"): Spent(
                side.get((file, name), (0.0,))[0]
            )
            for (file, name), line in lines.items()
        }
        for side in sides
    )
    return _changes(*spent)


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


def split_changes(before: RunResult, after: RunResult) -> Iterator[ProfileChange]:
    """The parts of the mean step that both runs measured."""
    splits = (before.split, after.split)
    known = [f for f in PARTS if all(getattr(each, f, None) is not None for each in splits)]
    times = [{f: getattr(each, f) for f in known} for each in splits]
    sides = (
        {(ThingKind.PART, PARTS[f]): Spent(ms, own_ms=ms) for f, ms in t.items()} for t in times
    )
    return _changes(*sides)
