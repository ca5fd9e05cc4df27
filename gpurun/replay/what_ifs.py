"""Changes of the steps that a user could make: the replayed step and its gain, and their table."""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import cached_property, partial

import numpy as np

from gpurun.records.messages.profile_events import COLLECTION
from gpurun.records.profile_figures import WhatIf
from gpurun.replay import graph_changes as changes
from gpurun.replay.replayed_steps import median_step_ms
from gpurun.replay.step_graph import StepGraph
from gpurun.timeline.columns import Times
from gpurun.timeline.figures_of import LAUNCH_NS
from gpurun.timeline.kernel_groups import ON_TENSOR_CORES
from gpurun.timeline.kernel_time import is_long, needless_if_fused
from gpurun.timeline.model import MODEL_PHASES, Copy, CopyKind, Kernel, Phase, Timeline
from gpurun.timeline.runtime_calls import LAUNCHES, Role
from gpurun.timeline.time_intervals import Intervals, intervals

LEAST_GAIN = 1.005
"""Changes that gain less than half a percent are left out of the table, but for the two limits."""
PEAK_RATIOS = {
    (7, 0): 8.0, (7, 5): 8.0, (8, 0): 16.0, (8, 6): 4.0, (8, 7): 4.0, (8, 9): 4.0, (9, 0): 15.0,
    (10, 0): 30.0, (10, 3): 30.0, (12, 0): 4.0,
}  # fmt: skip
"""Peak of half precision on tensor cores over that of float32 outside them, by compute capability,
rounded up, from NVIDIA's data sheets (V100, T4, A100, A10, Orin, L40S, H100, B200, B300, RTX 5090).
No kernel gains more than this.
"""


class Change(enum.Enum):
    """A change of the graph, in the words of the table."""

    WAITS = "waits of the host for the device gone"
    LAUNCH_WAITS = "launches that do not wait"
    LAUNCHES = "no waits, launches free, chains of short kernels fused"
    ALLOCATIONS = "allocator calls gone"
    COPIES = "batches copied from pinned memory, a step ahead"
    READBACKS = "copies to the host gone"
    MOVES = "copies on the device gone"
    BATCHES = "batches ready when asked for"
    PYTHON = "Python between the parts of the step gone"
    COLLECTION = "Python's garbage collections gone"
    PRECISION = "matrix products at the peak of tensor cores"
    FUSION = "chains of elementwise kernels fused"
    COLLECTIVES = "collectives gone"
    KERNELS = "kernels twice as fast"
    HOST = "the host takes no time"
    DEVICE = "the device takes no time"


class Replay:
    """The steps of one rank as a graph, without what recording adds to the host's calls."""

    def __init__(self, graph: StepGraph, timeline: Timeline) -> None:
        self.graph = graph
        self.step_ms = median_step_ms(graph)
        """The median step as it is, in milliseconds."""
        self._timeline = timeline
        self._steps: dict[Change, float | None] = {}
        waits = timeline.named(Phase.DATA.value)
        self._data = intervals(waits) if waits else None

    def gain(self, change: Change) -> float | None:
        """The factor of throughput by a change; None where the recording lacks its subject.

        `LAUNCHES` gain what they add to steps without waits: the device's idle time after a wait
        belongs to the wait, as far as it goes with it.
        """
        step, before = self._step_ms(change), self.step_ms
        if change is Change.LAUNCHES:
            before = median_step_ms(self._without_waits)
        return before / step if step else None

    def gain_of_kernel(self, name: str, factor: float) -> float | None:
        """The same if all kernels of this name took so many times their time; None without any."""

        def is_it(record: Kernel | Copy) -> bool:
            return isinstance(record, Kernel) and record.name == name

        if not any(map(is_it, self.graph.events.work.records)):
            return None
        step = median_step_ms(changes.with_work_scaled(self.graph, is_it, factor))
        return self.step_ms / step if step else None

    def python_pauses(self) -> Intervals:
        """When the host did what `PYTHON` leaves out; it waits in none of these times."""
        lengths = self._python(self.graph)
        edges, chosen = self.graph.edges, lengths > 0
        ends = self.graph.recorded_ns[edges.target[chosen]]
        return Intervals.union(ends - edges.lag_ns[chosen], ends)

    def what_if(self, *, matched: bool) -> tuple[WhatIf, ...]:
        """The changes that gain something, the greatest gain first, and the two limits.

        `matched`: the replay as it is matches the recording; else no gain is claimed.
        """
        found = []
        for change in Change:
            step, limit = self._step_ms(change), change in (Change.HOST, Change.DEVICE)
            gain = self.step_ms / step if step else None
            if step is not None and (limit or (self.gain(change) or 0.0) >= LEAST_GAIN):
                found.append((limit, step, WhatIf(change.value, step, gain if matched else None)))
        return tuple(row for *_, row in sorted(found, key=lambda each: each[:2]))

    def _step_ms(self, change: Change) -> float | None:
        if change not in self._steps:
            changed = self._changed(change)
            self._steps[change] = None if changed is None else median_step_ms(changed)
        return self._steps[change]

    def _changed(self, change: Change) -> StepGraph | None:
        graph = self.graph
        match change:
            case Change.LAUNCHES:
                fused = _fused(self._without_waits, lambda kernel: not is_long(kernel))
                waits = 0 if self._data is None else changes.pauses_in(fused, self._data)
                return changes.with_free_launches(fused, self._python(fused) + waits)
            case Change.BATCHES:
                return None if self._data is None else changes.with_batches_ready(graph, self._data)
            case Change.COLLECTION:
                found = self._timeline.named(COLLECTION)
                pauses = changes.pauses_in(graph, intervals(found))
                return graph.with_lags(graph.edges.lag_ns - pauses) if found else None
            case Change.PYTHON:
                return graph.with_lags(graph.edges.lag_ns - self._python(graph))
            case Change.PRECISION:
                known = [each.capability for each in self._timeline.devices or ()]
                ratios = [PEAK_RATIOS[each] for each in known if each in PEAK_RATIOS]
                if not ratios:
                    return None
                return changes.with_work_scaled(graph, _outside_cores, 1 / min(ratios))
            case _:
                return OF_GRAPH[change](graph)

    @cached_property
    def _without_waits(self) -> StepGraph:
        return changes.without_waits(changes.without_reads(self.graph), LAUNCHES)

    def _python(self, graph: StepGraph) -> Times:
        """Long pauses of the host outside of loader, model and optimizer."""
        timeline = self._timeline
        parts = intervals(timeline.named(*MODEL_PHASES))
        outside = parts.gaps(timeline.window_begin_ns, timeline.window_end_ns)
        return np.where(graph.edges.lag_ns > LAUNCH_NS, changes.pauses_in(graph, outside), 0)


def _fused(graph: StepGraph, of: Callable[[Kernel], bool]) -> StepGraph:
    work = graph.events.work
    needless = [place for place, _ in needless_if_fused(work.records, of)]
    return changes.without_work(graph, np.isin(np.arange(len(work)), needless))


def _outside_cores(record: Kernel | Copy) -> bool:
    if not isinstance(record, Kernel):
        return False
    return record.group in ON_TENSOR_CORES and record.kind.tensor_core is False


OF_GRAPH: dict[Change, Callable[[StepGraph], StepGraph]] = {
    Change.WAITS: changes.without_reads,
    Change.LAUNCH_WAITS: partial(changes.without_waits, roles=LAUNCHES),
    Change.ALLOCATIONS: partial(changes.without_calls, roles=[Role.ALLOCATE]),
    Change.COPIES: changes.with_copies_ahead,
    Change.READBACKS: partial(changes.without_copies, kind=CopyKind.D2H),
    Change.MOVES: partial(changes.without_copies, kind=CopyKind.D2D),
    Change.FUSION: partial(_fused, of=is_long),
    Change.COLLECTIVES: changes.without_collectives,
    Change.KERNELS: partial(
        changes.with_work_scaled, of=lambda each: isinstance(each, Kernel), factor=0.5
    ),
    Change.HOST: changes.without_host,
    Change.DEVICE: changes.without_device,
}
"""Changes that need the graph alone; the others ask the timeline, too."""
