"""The window of steady steps, and what one device did in it: kernels, copies and collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from gpurun.timeline.columns import Mask, begins, ends, numbers_of, selected, values_of
from gpurun.timeline.kernel_groups import ON_HOST
from gpurun.timeline.model import Copy, Group, Kernel, Range, Timeline
from gpurun.timeline.time_intervals import Intervals, intervals

E = TypeVar("E", Kernel, Copy)
OWN_WINDOW = "steps"
"""The source of a timeline that gpurun's step clock confined."""
FEWEST_STEPS = 4
"""With fewer steps no part of a window is left out."""
SPIKE = 1.5
"""A leading step that takes this many times the median is warm-up, with those before it."""


@dataclass(frozen=True)
class DeviceWork:
    """What the device did that a rank uses most: `kernels`, and `copies`, if a source records them.

    The intervals are cut at the window's ends. `computing`: kernels but collectives. `busy`: all
    kernels and copies.
    """

    device: int
    begin_ns: int
    end_ns: int
    kernels: Sequence[Kernel]
    copies: Sequence[Copy]
    computing: Intervals
    busy: Intervals

    @property
    def window_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.begin_ns

    def since(self, begin: int) -> DeviceWork:
        """What is left of it in a window that begins later."""
        computing, busy = (each.within(begin, self.end_ns) for each in (self.computing, self.busy))
        return replace(self, begin_ns=begin, computing=computing, busy=busy)

    def share(self, nanoseconds: float) -> float:
        """A time as a share of the window."""
        return float(nanoseconds) / self.window_ns

    def shares(self, events: Sequence[Copy | Kernel | Range]) -> tuple[float, float]:
        """Their share of the window, and that in which no kernel computes."""
        spans = intervals(events).within(self.begin_ns, self.end_ns)
        exposed = spans.total_ns - spans.overlap_ns(self.computing)
        return self.share(spans.total_ns), self.share(exposed)


def device_work(timeline: Timeline) -> DeviceWork | None:
    """The work of the busiest device; None where no source records kernels."""
    if not timeline.kernels or timeline.window_ns <= 0:
        return None
    device = busiest_device(timeline.kernels)
    kernels, copies = on_device(timeline.kernels, device), on_device(timeline.copies or (), device)
    window = timeline.window_begin_ns, timeline.window_end_ns
    computing = intervals(selected(kernels, ~exchanging(kernels))).within(*window)
    both = (np.concatenate([of(kernels), of(copies)]) for of in (begins, ends))
    busy = Intervals.union(*both).within(*window)
    return DeviceWork(device, *window, kernels, copies, computing, busy)


def exchanging(kernels: Sequence[Kernel]) -> Mask:
    """For each kernel whether it exchanges data between ranks."""
    kinds, places = values_of(kernels, "kind")
    groups = np.array([kind.group is Group.COMMUNICATION for kind in kinds], dtype=bool)
    exchanges: Mask = groups[places]
    return exchanges


def busiest_device(kernels: Sequence[Kernel]) -> int:
    """The device with most launches."""
    devices, launches = np.unique(numbers_of(kernels, "device"), return_counts=True)
    return int(devices[launches.argmax()])


def on_device(events: Sequence[E], device: int) -> Sequence[E]:
    """Those of a device."""
    return selected(events, numbers_of(events, "device") == device)


def host_exchanges(timeline: Timeline) -> Sequence[Range]:
    """The ranges in which ranks exchange data on the host, on any of its threads."""
    return [each for each in timeline.ranges or () if each.name.startswith(ON_HOST)]


def steady(timeline: Timeline) -> Timeline:
    """The timeline from its first steady step on; as it is where no steps are marked.

    Recordings made elsewhere begin with a script's first steps. A window of gpurun's own begins
    when steps are steady, and its sums are of all its steps.
    """
    if OWN_WINDOW in timeline.sources or not timeline.steps or len(timeline.steps) < FEWEST_STEPS:
        return timeline
    start = begins(timeline.steps)
    lengths = ends(timeline.steps) - start
    spikes = np.flatnonzero(lengths[: len(lengths) // 2] > SPIKE * np.median(lengths))
    if not len(spikes):
        return timeline
    begin = int(start[spikes[-1] + 1])
    later: dict[str, Any] = {}
    for name in ("steps", "ranges", "kernels", "copies", "runtime_calls"):
        events = getattr(timeline, name)
        later[name] = events and selected(events, begins(events) >= begin)
    return replace(timeline, window_begin_ns=begin, **later)


def filled_ns(timeline: Timeline) -> int:
    """The time from which a GPU's waits are those of any step: the window's begin, or later.

    A window of gpurun's own begins when the GPU has done all its work. So it idles at first, which
    it does not in steps whose launches come ahead of it: the second step's first kernel counts.
    """
    steps, starts = begins(timeline.steps or ()), begins(timeline.kernels or ())
    if OWN_WINDOW not in timeline.sources or len(steps) < FEWEST_STEPS:
        return timeline.window_begin_ns
    later = starts[starts >= steps[1]]
    return int(later.min()) if len(later) else timeline.window_begin_ns
