"""What one device did in the window: intervals of its kernels, copies and collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from gpurun.timeline.columns import numbers_of, selected, values_of
from gpurun.timeline.kernel_groups import ON_HOST
from gpurun.timeline.model import Copy, Group, Kernel, Range, Timeline
from gpurun.timeline.time_intervals import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    """What the device did that a rank uses most: `kernels`, and `copies`, if a source records them.

    The intervals are cut at the window's ends.
    """

    device: int
    begin_ns: int
    end_ns: int
    kernels: Sequence[Kernel]
    copies: Sequence[Copy]
    computing: Intervals
    """Kernels but collectives."""
    busy: Intervals
    """All kernels and copies."""

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


def device_work(timeline: Timeline) -> DeviceWork | None:
    """The work of the busiest device; None where no source records kernels."""
    if not timeline.kernels or timeline.window_ns <= 0:
        return None
    device = busiest_device(timeline.kernels)
    kernels, copies = on_device(timeline.kernels, device), on_device(timeline.copies or (), device)
    begin, end = timeline.window_begin_ns, timeline.window_end_ns
    computing = intervals(selected(kernels, ~exchanging(kernels)))
    busy = Intervals.union(
        np.concatenate([begins(kernels), begins(copies)]),
        np.concatenate([ends(kernels), ends(copies)]),
    )
    return DeviceWork(
        device, begin, end, kernels, copies, computing.within(begin, end), busy.within(begin, end)
    )


def exchanging(kernels: Sequence[Kernel]) -> NDArray[np.bool_]:
    """For each kernel whether it exchanges data between ranks."""
    kinds, places = values_of(kernels, "kind")
    groups = np.array([kind.group is Group.COMMUNICATION for kind in kinds], dtype=bool)
    exchanges: NDArray[np.bool_] = groups[places]
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
