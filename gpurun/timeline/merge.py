"""Put what several sources measured of one process on one timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from gpurun.timeline.model import Phase, Range, Timeline

_KEPT = ("sources", "window_begin_ns", "window_end_ns", "notes", "ranges")
_PHASES = frozenset(phase.value for phase in Phase)


def merged(timelines: Sequence[Timeline]) -> Timeline:
    """One timeline. The first that measured a thing counts; its window is that of the first.

    Phases are those of the first that marked any; the other ranges of all are kept.
    """
    first, *others = timelines
    result = first
    for other in others:
        missing = {
            field.name: getattr(other, field.name)
            for field in fields(Timeline)
            if field.name not in _KEPT and getattr(result, field.name) is None
        }
        result = replace(
            result,
            sources=(*result.sources, *other.sources),
            ranges=_all_ranges(result, other),
            notes=(*result.notes, *other.notes),
            **missing,
        )
    return result


def _all_ranges(first: Timeline, other: Timeline) -> Sequence[Range] | None:
    if first.ranges is None or other.ranges is None:
        return other.ranges if first.ranges is None else first.ranges
    marked = any(each.name in _PHASES for each in first.ranges)
    more = [each for each in other.ranges if not marked or each.name not in _PHASES]
    return tuple(sorted((*first.ranges, *more), key=lambda each: (each.begin_ns, -each.end_ns)))
