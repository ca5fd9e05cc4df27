"""What one device did in the window: intervals of its kernels, copies and collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from gpurun.timeline.columns import numbers_of, selected
from gpurun.timeline.kernel_groups import ON_HOST
from gpurun.timeline.model import Copy, Group, Kernel, Range, Timeline
from gpurun.timeline.time_intervals import Intervals

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


E = TypeVar("E", Kernel, Copy)


@dataclass(frozen=True)
class DeviceWork:
    """The device that a rank uses most.

    `kernels`: those that compute; collectives are not among them. The intervals are cut at the
    window's ends. `copies`: None where no source records them.
    """

    device: int
    begin_ns: int
    end_ns: int
    kernels: Intervals
    copies: Intervals | None
    busy: Intervals
    """All of these and collectives together."""

    @property
    def window_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.begin_ns

    def since(self, begin: int) -> DeviceWork:
        """What is left of it in a window that begins later."""
        copies, end = self.copies, self.end_ns
        return replace(
            self,
            begin_ns=begin,
            kernels=self.kernels.within(begin, end),
            copies=None if copies is None else copies.within(begin, end),
            busy=self.busy.within(begin, end),
        )

    def share(self, nanoseconds: float) -> float:
        """A time as a share of the window."""
        return float(nanoseconds) / self.window_ns


def device_work(timeline: Timeline) -> DeviceWork | None:
    """The work of the busiest device; None where no source records kernels."""
    if not timeline.kernels or timeline.window_ns <= 0:
        return None
    device = busiest_device(timeline.kernels)
    kernels = on_device(timeline.kernels, device)
    copies = None
    if timeline.copies is not None:
        copies = intervals(on_device(timeline.copies, device))
    groups = (kernel.group is Group.COMMUNICATION for kernel in kernels)
    exchanges = np.fromiter(groups, bool, len(kernels))
    compute = intervals(selected(kernels, ~exchanges))
    exchange = intervals(selected(kernels, exchanges))
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
        busy.within(begin, end),
    )


def busiest_device(kernels: Sequence[Kernel]) -> int:
    """The device with most launches."""
    devices, launches = np.unique(numbers_of(kernels, "device"), return_counts=True)
    return int(devices[launches.argmax()])


def on_device(events: Sequence[E], device: int) -> Sequence[E]:
    """Those of a device."""
    return selected(events, numbers_of(events, "device") == device)


def collectives_on(timeline: Timeline, device: int) -> Sequence[Kernel]:
    """The collectives on a device."""
    kernels = timeline.kernels or ()
    return [k for k in kernels if k.device == device and k.group is Group.COMMUNICATION]


def host_exchanges(timeline: Timeline) -> Sequence[Range]:
    """The ranges in which ranks exchange data on the host, on any of its threads."""
    return [each for each in timeline.ranges or () if each.name.startswith(ON_HOST)]


def copies_on(timeline: Timeline, device: int) -> Sequence[Copy]:
    """The copies from, to or on a device."""
    return on_device(timeline.copies or (), device)


def intervals(events: Sequence[Timed]) -> Intervals:
    """The times that at least one of the events covers."""
    return Intervals.union(begins(events), ends(events))


def begins(events: Sequence[Timed]) -> Times:
    """When each begins."""
    return numbers_of(events, "begin_ns")


def ends(events: Sequence[Timed]) -> Times:
    """When each ends."""
    return numbers_of(events, "end_ns")


def step_count(timeline: Timeline) -> int | None:
    """Steps of the window; None where they are not marked."""
    return len(timeline.steps) if timeline.steps else None


def a_step(amount: float, timeline: Timeline) -> float | None:
    """An amount of the whole window as that of a mean step."""
    steps = step_count(timeline)
    return None if steps is None else amount / steps
