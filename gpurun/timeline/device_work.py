"""What one device did in the window: intervals of its kernels, copies and collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gpurun.timeline.model import Collective, Copy, Group, Kernel, Timeline
from gpurun.timeline.time_intervals import Intervals, as_times

if TYPE_CHECKING:
    from gpurun.timeline.time_intervals import Times


class Timed(Protocol):
    """A record of something that begins and ends."""

    @property
    def begin_ns(self) -> int:
        """When it begins."""

    @property
    def end_ns(self) -> int:
        """When it ends."""


@dataclass(frozen=True)
class DeviceWork:
    """The device that a rank uses most. Kernels leave collectives out, which stand beside them.

    The intervals are cut at the window's ends. `copies` and `collectives` are None where no source
    records them.
    """

    device: int
    begin_ns: int
    end_ns: int
    kernels: Intervals
    copies: Intervals | None
    collectives: Intervals
    busy: Intervals
    """All of these together."""

    @property
    def window_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.begin_ns

    def share(self, nanoseconds: float) -> float:
        """A time as a share of the window."""
        return float(nanoseconds) / self.window_ns


def device_work(timeline: Timeline) -> DeviceWork | None:
    """The work of the busiest device; None where no source records kernels."""
    if not timeline.kernels or timeline.window_ns <= 0:
        return None
    device = busiest_device(timeline.kernels)
    kernels = [k for k in timeline.kernels if k.device == device]
    communication = collectives_on(timeline, device)
    copies = None
    if timeline.copies is not None:
        copies = intervals([c for c in timeline.copies if c.device == device])
    compute = intervals([k for k in kernels if k.group is not Group.COMMUNICATION])
    exchange = intervals(communication)
    parts = [compute, exchange, *([] if copies is None else [copies])]
    begin, end = timeline.window_begin_ns, timeline.window_end_ns
    busy = Intervals.union(
        np.concatenate([part.start for part in parts]), np.concatenate([part.end for part in parts])
    )
    return DeviceWork(
        device,
        begin,
        end,
        compute.within(begin, end),
        None if copies is None else copies.within(begin, end),
        exchange.within(begin, end),
        busy.within(begin, end),
    )


def busiest_device(kernels: Sequence[Kernel]) -> int:
    """The device with most launches."""
    return Counter(kernel.device for kernel in kernels).most_common(1)[0][0]


def collectives_on(timeline: Timeline, device: int) -> Sequence[Collective | Kernel]:
    """The collectives on a device: as such where a source knows them, else by their kernels."""
    if timeline.collectives is not None:
        return [c for c in timeline.collectives if c.device == device]
    kernels = timeline.kernels or ()
    return [k for k in kernels if k.device == device and k.group is Group.COMMUNICATION]


def copies_on(timeline: Timeline, device: int) -> Sequence[Copy]:
    """The copies from, to or on a device."""
    return [copy for copy in timeline.copies or () if copy.device == device]


def intervals(events: Sequence[Timed]) -> Intervals:
    """The times that at least one of the events covers."""
    return Intervals.union(begins(events), ends(events))


def begins(events: Sequence[Timed]) -> Times:
    """When each begins."""
    return as_times([event.begin_ns for event in events])


def ends(events: Sequence[Timed]) -> Times:
    """When each ends."""
    return as_times([event.end_ns for event in events])


def step_count(timeline: Timeline) -> int | None:
    """Steps of the window; None where they are not marked."""
    return len(timeline.steps) if timeline.steps else None


def a_step(amount: float, timeline: Timeline) -> float | None:
    """An amount of the whole window as that of a mean step."""
    steps = step_count(timeline)
    return None if steps is None else amount / steps
