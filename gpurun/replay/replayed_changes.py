"""What each change between two step graphs explains: it is taken out, and the steps replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpurun.records.diagnosis import ChangeKind, ProfileChange, ThingKind
from gpurun.replay.compared_names import Spent, Thing, profile_change
from gpurun.replay.equalised_graphs import (
    Amount,
    Pair,
    ReplayedSide,
    all_things,
    equalised,
    replayed_side,
)
from gpurun.replay.replayed_steps import median_step_ms
from gpurun.replay.step_graph import StepGraph
from gpurun.timeline.device_work import intervals
from gpurun.timeline.model import MODEL_PHASES, Timeline
from gpurun.timeline.runtime_calls import is_sync
from gpurun.timeline.time_intervals import Intervals

MOST_ALONE = 16
"""Changes that are taken out one by one, each at the cost of two to four replays; smaller ones are
taken out together. A replay of the longest graph takes a second."""
MOST_TOGETHER = 500
"""Changes that are taken out at all: a file may name a kernel for each of its launches."""
SMALLER = "smaller changes"
BETWEEN = "between the parts of the step"
WHOLE = "in the whole step"


@dataclass(frozen=True)
class _Replayed:
    """Both sides with what was not yet taken out, and their replayed steps in milliseconds."""

    pair: Pair
    steps_ms: tuple[float, float]

    def without(self, things: Sequence[Thing]) -> _Replayed:
        """These taken out of both; a side that has no more of them is not replayed again."""
        pair = equalised(self.pair, things)
        one, other = (
            step if new.graph is old.graph else median_step_ms(new.graph)
            for new, old, step in zip(pair, self.pair, self.steps_ms, strict=True)
        )
        return _Replayed(pair, (one, other))

    def explained_ms(self, rest: _Replayed) -> float:
        """By how much the steps differ more than those of what is left."""
        return (self.steps_ms[1] - self.steps_ms[0]) - (rest.steps_ms[1] - rest.steps_ms[0])


def replayed_changes(
    before: StepGraph, after: StepGraph, timelines: tuple[Timeline, Timeline]
) -> tuple[ProfileChange, ...]:
    """What both graphs differ in, and what that explains of the difference of their median steps.

    The changes are taken out one after the other, the one that explains most by itself first. So
    two that hide each other count once, and all together explain what they do together. The host's
    own time comes last: it is what work and waits leave of it.
    """
    parts = _parts(timelines)
    pair = (replayed_side(before, parts[0]), replayed_side(after, parts[1]))
    first, later = all_things(pair)
    sizes = {thing: _size(pair, thing) for thing in (*first, *later)}
    changed = [thing for thing in sizes if sizes[thing] > 0]
    by_size = sorted(changed, key=lambda thing: (not _waits(thing), -sizes[thing]))
    largest, smaller = by_size[:MOST_ALONE], by_size[MOST_ALONE:MOST_TOGETHER]
    whole = _Replayed(pair, (median_step_ms(before), median_step_ms(after)))
    alone = {
        thing: abs(whole.explained_ms(whole.without([thing])))
        for thing in first
        if thing in largest
    }
    ordered = sorted(alone, key=lambda thing: -alone[thing])
    found, rest = [], whole
    for thing in (*ordered, *(each for each in later if each in largest)):
        left = rest.without([thing])
        spent = (_spent(side, thing) for side in pair)
        found.append(profile_change(thing, *spent, rest.explained_ms(left)))
        rest = left
    if smaller:
        left = rest.without(smaller)
        found.append(
            ProfileChange(
                kind=ThingKind.OTHERS,
                name=SMALLER,
                change=ChangeKind.SEVERAL,
                before_ms=None,
                after_ms=None,
                explained_ms=rest.explained_ms(left),
            )
        )
    return tuple(found)


def _waits(thing: Thing) -> bool:
    """It waits for the device: even a short wait lets the device run out of work."""
    return thing[0] is ThingKind.CALL and is_sync(thing[1])


def _size(pair: Pair, thing: Thing) -> float:
    """Milliseconds a step by which the sides differ in it; 0: they do not."""
    before, after = (side.shown(thing) or Amount(0.0, 0.0) for side in pair)
    return abs(after.ms - before.ms)


def _spent(side: ReplayedSide, thing: Thing) -> Spent | None:
    amount = side.shown(thing)
    counted = thing[0] is not ThingKind.HOST
    return None if amount is None else (amount.ms, amount.calls if counted else None)


def _parts(timelines: tuple[Timeline, Timeline]) -> tuple[Mapping[str, Intervals], ...]:
    """When the host of each side is in each part of the step; where one marks no parts, all of
    both.
    """
    found = [_marked(timeline) for timeline in timelines]
    if all(found):
        return tuple(found)
    windows = [intervals(timeline.steps or ()) for timeline in timelines]
    return tuple({WHOLE: Intervals(w.start[:1], w.end[-1:])} for w in windows)


def _marked(timeline: Timeline) -> dict[str, Intervals]:
    names = [each.name for each in timeline.ranges or ()]
    ranges = {
        name: intervals([each for each in timeline.ranges or () if each.name == name])
        for name in sorted(MODEL_PHASES.intersection(names))
    }
    if not ranges:
        return {}
    marked = intervals([each for each in timeline.ranges or () if each.name in ranges])
    between = marked.gaps(timeline.window_begin_ns, timeline.window_end_ns)
    return {**ranges, BETWEEN: between}
