"""Recordings made elsewhere begin with a script's first steps: the window without them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpurun.timeline.columns import selected
from gpurun.timeline.device_work import begins, ends
from gpurun.timeline.model import Timeline

OWN_WINDOW = "steps"
"""The source of a timeline that gpurun's step clock confined."""
FEWEST_STEPS = 4
"""With fewer steps no part of a window is left out."""
SPIKE = 1.5
"""A leading step that takes this many times the median is warm-up, with those before it."""


def steady(timeline: Timeline) -> Timeline:
    """The timeline from its first steady step on; as it is where no steps are marked.

    A window of gpurun's own begins when steps are steady, and its sums are of all its steps.
    """
    if OWN_WINDOW in timeline.sources or not timeline.steps or len(timeline.steps) < FEWEST_STEPS:
        return timeline
    start = begins(timeline.steps)
    lengths = ends(timeline.steps) - start
    early = lengths[: len(lengths) // 2] > SPIKE * np.median(lengths)
    spikes = np.flatnonzero(early)
    if not len(spikes):
        return timeline
    return _since(timeline, int(start[spikes[-1] + 1]))


def filled_ns(timeline: Timeline) -> int:
    """The time from which a GPU's waits are those of any step: the window's begin, or later.

    A window of gpurun's own begins when the GPU has done all its work. So it idles at first, which
    it does not in steps whose launches come ahead of it: the second step's first kernel counts.
    """
    steps = timeline.steps
    if OWN_WINDOW not in timeline.sources or steps is None or len(steps) < FEWEST_STEPS:
        return timeline.window_begin_ns
    starts = begins(timeline.kernels or ())
    later = starts[starts >= begins(steps)[1]]
    return int(later.min()) if len(later) else timeline.window_begin_ns


def _since(timeline: Timeline, begin: int) -> Timeline:
    """The timeline without what began before a time."""
    fields = ("steps", "ranges", "kernels", "copies", "runtime_calls")
    events = {name: getattr(timeline, name) for name in fields}
    later: dict[str, Any] = {
        name: selected(each, begins(each) >= begin)
        for name, each in events.items()
        if each is not None
    }
    return replace(timeline, window_begin_ns=begin, **later)
