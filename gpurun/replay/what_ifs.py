"""The what-if table: the replayed step under each change that a user could make."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpurun.records.profile_figures import WhatIf
from gpurun.replay.call_roles import Role
from gpurun.replay.graph_changes import (
    with_batches_ready,
    with_copies_ahead,
    with_work_scaled,
    without_calls,
    without_collectives,
    without_device,
    without_host,
    without_pauses,
    without_waits,
    without_work,
)
from gpurun.replay.replayed_steps import median_step_ms
from gpurun.replay.step_graph import StepGraph
from gpurun.timeline.device_work import intervals
from gpurun.timeline.idle_causes import data_ranges
from gpurun.timeline.model import MODEL_PHASES, Copy, Group, Kernel, Timeline

LEAST_GAIN = 1.005
"""Changes that gain less than half a percent are left out, but for the two limits."""
ON_TENSOR_CORES = (Group.MATMUL, Group.CONV, Group.ATTENTION)
FUSED = (Group.ELEMENTWISE, Group.NORM, Group.REDUCTION)
LIMITS = ("the host takes no time", "the device takes no time")


def what_ifs(graph: StepGraph, timeline: Timeline) -> tuple[WhatIf, ...]:
    """The changes that gain something, the greatest gain first, and the two limits."""
    step = median_step_ms(graph)
    found = []
    for name, change in _changes(timeline):
        changed = median_step_ms(change(graph))
        gain = step / changed if changed > 0 else None
        if name in LIMITS or (gain is not None and gain >= LEAST_GAIN):
            found.append(WhatIf(name, changed, gain))
    return tuple(sorted(found, key=lambda each: (each.change in LIMITS, each.step_ms)))


def _changes(timeline: Timeline) -> Iterator[tuple[str, Callable[[StepGraph], StepGraph]]]:
    yield "waits of the host for the device gone", without_waits
    yield "launches that do not wait", lambda g: without_waits(g, [Role.LAUNCH, Role.GRAPH])
    yield "allocator calls gone", lambda g: without_calls(g, [Role.ALLOCATE])
    yield "batches copied from pinned memory, a step ahead", with_copies_ahead
    yield "matrix products on tensor cores", lambda g: with_work_scaled(g, _outside_cores, 0.5)
    yield "elementwise kernels part of others", lambda g: without_work(g, _elementwise)
    yield "collectives gone", without_collectives
    waits = data_ranges(timeline)
    if waits:
        yield "batches ready when asked for", lambda g: with_batches_ready(g, intervals(waits))
    parts = intervals([r for r in timeline.ranges or () if r.name in MODEL_PHASES])
    if len(parts):
        rest = parts.gaps(timeline.window_begin_ns, timeline.window_end_ns)
        yield "Python between the parts of the step gone", lambda g: without_pauses(g, rest)
    yield "kernels twice as fast", lambda g: with_work_scaled(g, _is_kernel, 0.5)
    yield LIMITS[0], without_host
    yield LIMITS[1], without_device


def _is_kernel(record: Kernel | Copy) -> bool:
    return isinstance(record, Kernel)


def _outside_cores(record: Kernel | Copy) -> bool:
    return (
        isinstance(record, Kernel)
        and record.group in ON_TENSOR_CORES
        and record.tensor_core is False
    )


def _elementwise(record: Kernel | Copy) -> bool:
    return isinstance(record, Kernel) and record.group in FUSED
