"""The host's functions in some times only, by the moments at which they were seen."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpurun.records.messages.profile_events import FunctionSamples
from gpurun.timeline.model import Timeline
from gpurun.timeline.time_intervals import Intervals


def functions_during(timeline: Timeline, times: Intervals) -> Sequence[FunctionSamples] | None:
    """The functions with the time and the busiest line that they have in these times.

    None where a recording does not tell when they were seen, or none of them was seen then.
    """
    moments, functions = timeline.host_moments, timeline.host_functions
    if not moments or not functions or not timeline.host_sampled_seconds:
        return None
    at = np.fromiter((moment for moment, _ in moments), np.int64, len(moments))
    inside = np.flatnonzero(times.covered(at, at + 1))
    seconds = timeline.host_sampled_seconds / len(moments)
    own: Counter[int] = Counter()
    lines: dict[int, Counter[int]] = defaultdict(Counter)
    for number in inside.tolist():
        frames = moments[number][1]
        own.update(place for place, _ in frames[:1])
        for place, line in frames:
            lines[place][line] += 1
    found = [
        replace(
            functions[place],
            line=seen.most_common(1)[0][0],
            self_seconds=own[place] * seconds,
            total_seconds=seen.total() * seconds,
            blocked_seconds=None,
        )
        for place, seen in lines.items()
    ]
    return found or None
