"""All figures of a timeline. Pure: the same timeline gives the same figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import merge

import numpy as np

from gpurun.records.profile_figures import (
    CommunicationFigures,
    CopyFigures,
    LaunchFigures,
    ProfileFigures,
    StepParts,
    SyncFigures,
)
from gpurun.timeline.columns import selected
from gpurun.timeline.device_work import (
    DeviceWork,
    a_step,
    begins,
    device_work,
    ends,
    exchanging,
    host_exchanges,
    intervals,
    step_count,
)
from gpurun.timeline.idle_causes import data_ranges, idle_time
from gpurun.timeline.kernel_time import (
    SHORT_NS,
    KindTime,
    group_shares,
    kernel_counters,
    needless_if_fused,
    precision_figures,
    time_by_kind,
    top_kernels,
    top_operators,
)
from gpurun.timeline.model import (
    MODEL_PHASES,
    Copy,
    CopyKind,
    Group,
    Kernel,
    Phase,
    Range,
    RuntimeCall,
    Timeline,
)
from gpurun.timeline.runtime_calls import Role, host_waits, launch_times, role_of
from gpurun.timeline.steady_window import filled_ns


def figures_of(timeline: Timeline) -> ProfileFigures:
    """The figures of one rank's window; each is None where its source is not among those there."""
    work, waits = device_work(timeline), host_waits(timeline)
    host = ProfileFigures(
        steps=step_count(timeline),
        step_ms=a_step(timeline.window_ns / 1e6, timeline),
        step_parts=step_parts(timeline),
        syncs=sync_figures(timeline, waits),
        top_operators=top_operators(timeline),
        kernel_counters=kernel_counters(timeline.kernel_metrics),
    )
    if work is None:
        return host
    kinds = time_by_kind(work.kernels)
    return replace(
        host,
        kernel_share=work.share(work.computing.total_ns),
        idle=idle_time(timeline, work.since(filled_ns(timeline)), waits),
        copies=copy_figures(timeline, work),
        launches=launch_figures(timeline, work, kinds),
        precision=precision_figures(kinds, work),
        communication=communication_figures(timeline, work),
        group_shares=group_shares(kinds),
        top_kernels=top_kernels(kinds, timeline, work),
        fusable_share=fusable_share(work),
    )


def fusable_share(work: DeviceWork) -> float:
    """The share of kernels that fused ones would make needless."""
    both: Iterable[Kernel | Copy] = merge(work.kernels, work.copies, key=lambda each: each.begin_ns)
    return work.share(sum(length for _, length in needless_if_fused(both)))


def launch_figures(
    timeline: Timeline, work: DeviceWork, kinds: Sequence[KindTime]
) -> LaunchFigures:
    """The figures of the kernels that the window's device ran."""
    durations = ends(work.kernels) - begins(work.kernels)
    pauses = work.window_ns - work.busy.total_ns
    return LaunchFigures(
        kernels_per_step=a_step(len(work.kernels), timeline),
        mean_kernel_us=float(durations.mean()) / 1e3,
        gap_ms_per_step=a_step(pauses / 1e6, timeline),
        queue_depth=_queue_depth(timeline, work),
        small_grid_share=_small_grids(timeline, work, kinds),
        device_allocations_per_step=_device_allocations(timeline),
        short_kernels_share=float(durations[durations < SHORT_NS].sum()) / work.window_ns,
    )


def _queue_depth(timeline: Timeline, work: DeviceWork) -> float | None:
    """Mean number of launched kernels that have not begun: their waits over the window (Little)."""
    if not timeline.runtime_calls:
        return None
    launched, known = launch_times(work.kernels, timeline.runtime_calls, "end_ns")
    if not known.any():
        return None
    return float(np.maximum(begins(work.kernels) - launched, 0)[known].sum()) / work.window_ns


def _small_grids(timeline: Timeline, work: DeviceWork, kinds: Sequence[KindTime]) -> float | None:
    """Of the computing kernels: an exchange needs few blocks, whatever the batch."""
    counts = [d.multiprocessors for d in timeline.devices or () if d.index == work.device]
    kinds = [each for each in kinds if each.kind.group is not Group.COMMUNICATION]
    if not counts or counts[0] is None or any(each.kind.grid is None for each in kinds):
        return None
    small = sum(each.ns for each in kinds if math.prod(each.kind.grid or ()) < counts[0])
    total = sum(each.ns for each in kinds)
    return small / total if total else None


def _device_allocations(timeline: Timeline) -> float | None:
    if timeline.runtime_calls is None:
        return None
    calls = sum(
        role_of(call.name) is Role.ALLOCATE and "Host" not in call.name
        for call in timeline.runtime_calls
    )
    return a_step(calls, timeline)


def communication_figures(timeline: Timeline, work: DeviceWork) -> CommunicationFigures | None:
    """The figures of the collectives; None without any: one rank alone exchanges nothing."""
    exchanges = selected(work.kernels, exchanging(work.kernels))
    found: list[Kernel | Range] = [*exchanges, *host_exchanges(timeline)]
    if not found:
        return None
    share, exposed = _shares(found, work)
    sizes = [each.kind.message_bytes for each in exchanges]
    known = [size for size in sizes if size is not None]
    return CommunicationFigures(
        share=share,
        exposed_share=exposed,
        per_step=a_step(len(found), timeline),
        bytes_per_step=a_step(sum(known), timeline) if len(known) == len(found) else None,
    )


def step_parts(timeline: Timeline) -> StepParts | None:
    """Mean time of each part a step; None where steps or ranges are not marked."""
    if timeline.ranges is None or not timeline.steps:
        return None
    data = data_ranges(timeline)
    parts = StepParts(
        data_ms=None if data is None else _mean_ms(timeline, data),
        forward_ms=_phase_ms(timeline, Phase.FORWARD),
        backward_ms=_phase_ms(timeline, Phase.BACKWARD),
        optimizer_ms=_phase_ms(timeline, Phase.OPTIMIZER),
    )
    return None if parts == StepParts(None, None, None, None) else parts


def _phase_ms(timeline: Timeline, phase: Phase) -> float | None:
    found = [each for each in timeline.ranges or () if each.name == phase.value]
    return _mean_ms(timeline, found) if found else None


def _mean_ms(timeline: Timeline, ranges: list[Range]) -> float | None:
    spans = intervals(ranges).within(timeline.window_begin_ns, timeline.window_end_ns)
    return a_step(spans.total_ns / 1e6, timeline)


def sync_figures(timeline: Timeline, waits: Sequence[RuntimeCall] | None) -> SyncFigures | None:
    """The figures of the host's waits; None where no source records them."""
    if waits is None or timeline.window_ns <= 0:
        return None
    waiting = intervals(waits).within(timeline.window_begin_ns, timeline.window_end_ns)
    parts = intervals([r for r in timeline.ranges or () if r.name in MODEL_PHASES])
    inside = parts.covered(waiting.start, waiting.end).sum() if len(parts) else 0
    return SyncFigures(
        share=waiting.total_ns / timeline.window_ns,
        outside_share=float(waiting.total_ns - inside) / timeline.window_ns,
        per_step=a_step(len(waits), timeline),
        lines=(),
    )


def copy_figures(timeline: Timeline, work: DeviceWork) -> CopyFigures | None:
    """The figures of the copies; None where no source records copies."""
    if timeline.copies is None:
        return None
    copies = [c for c in work.copies if c.kind is CopyKind.H2D]
    told = all(copy.pageable is not None for copy in copies)
    share, exposed = _shares(copies, work)
    pageable = _shares([copy for copy in copies if copy.pageable], work) if told else (None, None)
    return CopyFigures(
        h2d_share=share,
        exposed_share=exposed,
        pageable_share=pageable[0],
        pageable_exposed_share=pageable[1],
        h2d_bytes_per_step=a_step(sum(copy.bytes for copy in copies), timeline),
        copies_per_step=a_step(len(copies), timeline),
    )


def _shares(events: Sequence[Copy | Kernel | Range], work: DeviceWork) -> tuple[float, float]:
    """Their share of the window, and that in which no kernel computes."""
    spans = intervals(events).within(work.begin_ns, work.end_ns)
    return work.share(spans.total_ns), work.share(spans.total_ns - spans.overlap_ns(work.computing))
