"""All figures of a timeline. Pure: the same timeline gives the same figures."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import merge

import numpy as np

from gpurun.records import profile_figures as told
from gpurun.timeline import kernel_time, model
from gpurun.timeline.columns import Mask, Times, begins, ends, selected
from gpurun.timeline.device_work import (
    DeviceWork,
    device_work,
    exchanging,
    filled_ns,
    host_exchanges,
)
from gpurun.timeline.kernel_time import KindTime
from gpurun.timeline.model import CopyKind, Group, Timeline
from gpurun.timeline.runtime_calls import Role, host_waits, launch_times, role_of
from gpurun.timeline.time_intervals import Intervals, intervals

LAUNCH_NS = 100_000
"""A pause up to this long is the pace of launches. One operator of torch takes the host 5 to 50 µs;
a longer pause is time in which the host did something else."""


def figures_of(timeline: Timeline) -> told.ProfileFigures:
    """The figures of one rank's window; each is None where its source is not among those there."""
    work, waits = device_work(timeline), host_waits(timeline)
    host = told.ProfileFigures(
        steps=len(timeline.steps) if timeline.steps else None,
        step_ms=timeline.a_step(timeline.window_ns / 1e6),
        step_parts=_step_parts(timeline),
        syncs=_sync_figures(timeline, waits),
        top_operators=kernel_time.top_operators(timeline),
        kernel_counters=kernel_time.kernel_counters(timeline.kernel_metrics),
    )
    if work is None:
        return host
    kinds = kernel_time.time_by_kind(work.kernels)
    both: Iterable[model.Kernel | model.Copy] = merge(
        work.kernels, work.copies, key=lambda each: each.begin_ns
    )
    needless = sum(length for _, length in kernel_time.needless_if_fused(both))
    idle = _idle_time(timeline, work.since(filled_ns(timeline)), waits)
    over_host = [c for c in work.copies if c.kind in (CopyKind.H2D, CopyKind.D2H)]
    copying, alone = work.shares(over_host)
    return replace(
        host,
        kernel_share=work.share(work.computing.total_ns),
        idle=idle,
        gpu_idle_time_ms=host.step_ms and idle.total * host.step_ms,
        sync_overhead_ms=host.step_ms and idle.sync and idle.sync * host.step_ms,
        memory_transfer_concurrent=1 - alone / copying if copying else None,
        copies=None if timeline.copies is None else tuple(_copies(timeline, work)),
        launches=_launch_figures(timeline, work, kinds),
        precision=kernel_time.precision_figures(kinds, work),
        communication=_communication_figures(timeline, work),
        group_shares=kernel_time.group_shares(kinds),
        top_kernels=kernel_time.top_kernels(kinds, timeline, work),
        fusable_share=work.share(needless),
    )


def _launch_figures(
    timeline: Timeline, work: DeviceWork, kinds: Sequence[KindTime]
) -> told.LaunchFigures:
    durations = ends(work.kernels) - begins(work.kernels)
    calls = timeline.runtime_calls
    allocations = sum(
        role_of(call.name) is Role.ALLOCATE and "Host" not in call.name for call in calls or ()
    )
    return told.LaunchFigures(
        kernels_per_step=timeline.a_step(len(work.kernels)),
        mean_kernel_us=float(durations.mean()) / 1e3,
        queue_depth=_queue_depth(timeline, work),
        small_grid_share=_small_grids(timeline, work, kinds),
        device_allocations_per_step=None if calls is None else timeline.a_step(allocations),
    )


def _queue_depth(timeline: Timeline, work: DeviceWork) -> float | None:
    """Mean number of launched kernels that have not begun: their waits over the window (Little)."""
    if not timeline.runtime_calls:
        return None
    launched, known = launch_times(work.kernels, timeline.runtime_calls, "end_ns")
    waits = np.maximum(begins(work.kernels) - launched, 0)[known]
    return work.share(waits.sum()) if known.any() else None


def _small_grids(timeline: Timeline, work: DeviceWork, kinds: Sequence[KindTime]) -> float | None:
    """Of the computing kernels: an exchange needs few blocks, whatever the batch."""
    counts = [d.multiprocessors for d in timeline.devices or () if d.index == work.device]
    kinds = [each for each in kinds if each.kind.group is not Group.COMMUNICATION]
    if not counts or counts[0] is None or any(each.kind.grid is None for each in kinds):
        return None
    small = sum(each.ns for each in kinds if math.prod(each.kind.grid or ()) < counts[0])
    total = sum(each.ns for each in kinds)
    return small / total if total else None


def _communication_figures(
    timeline: Timeline, work: DeviceWork
) -> told.CommunicationFigures | None:
    """The figures of the collectives; None without any: one rank alone exchanges nothing."""
    exchanges = selected(work.kernels, exchanging(work.kernels))
    found: list[model.Kernel | model.Range] = [*exchanges, *host_exchanges(timeline)]
    if not found:
        return None
    share, exposed = work.shares(found)
    sizes = [each.kind.message_bytes for each in exchanges]
    known = [size for size in sizes if size is not None]
    whole = timeline.a_step(sum(known)) if len(known) == len(found) else None
    return told.CommunicationFigures(share, exposed, timeline.a_step(len(found)), whole)


def _step_parts(timeline: Timeline) -> told.StepParts | None:
    """Mean time of each part a step; None where steps or ranges are not marked."""
    if timeline.ranges is None or not timeline.steps:
        return None
    found = [timeline.named(name) for name in model.MODEL_PHASES]
    window = timeline.window_begin_ns, timeline.window_end_ns
    parts = [
        timeline.a_step(intervals(each).within(*window).total_ns / 1e6) if each else None
        for each in found
    ]
    return told.StepParts(*parts) if any(found) else None


def _sync_figures(
    timeline: Timeline, waits: Sequence[model.RuntimeCall] | None
) -> told.SyncFigures | None:
    """The figures of the host's waits; None where no source records them."""
    if waits is None or timeline.window_ns <= 0:
        return None
    waiting = intervals(waits).within(timeline.window_begin_ns, timeline.window_end_ns)
    parts = intervals(timeline.named(*model.MODEL_PHASES))
    outside = waiting.total_ns - parts.overlap_ns(waiting)
    return told.SyncFigures(
        share=waiting.total_ns / timeline.window_ns,
        outside_share=outside / timeline.window_ns,
        per_step=timeline.a_step(len(waits)),
    )


def _copies(timeline: Timeline, work: DeviceWork) -> list[told.CopyShare]:
    """The copies of each kind, the longest first."""
    kinds: dict[tuple[CopyKind, bool | None], list[model.Copy]] = defaultdict(list)
    for copy in work.copies:
        kinds[copy.kind, copy.pageable].append(copy)
    found = [
        told.CopyShare(
            kind.value,
            pageable,
            *work.shares(copies),
            calls_per_step=timeline.a_step(len(copies)),
            bytes_per_step=timeline.a_step(sum(copy.bytes for copy in copies)),
        )
        for (kind, pageable), copies in kinds.items()
    ]
    return sorted(found, key=lambda each: -each.share)


def _idle_time(
    timeline: Timeline, work: DeviceWork, waits: Sequence[model.RuntimeCall] | None
) -> told.IdleTime:
    """Why the device had nothing to do: each of its pauses is shared out among the causes.

    A pause counts as wait for data as far as the script was in its loader, and as an exchange as
    far as ranks exchanged data on the host. While the host waits for the device it cannot launch
    ahead: so much of the pauses after a wait as the wait lasted belongs to the synchronisation. Of
    what remains, the next work was launched too late (`launch`, or `host` where the pause is long),
    or it was launched before and did not run (`other`). `waits`: of the host for the device; None:
    not recorded.
    """
    pauses = work.busy.gaps(work.begin_ns, work.end_ns)
    length, loading = pauses.end - pauses.start, timeline.named(model.Phase.DATA.value)
    data = intervals(loading).covered(pauses.start, pauses.end) if loading else None
    rest = length if data is None else length - data
    exchange = intervals(host_exchanges(timeline)).covered(pauses.start, pauses.end)
    exchange = np.minimum(exchange, rest)
    rest = rest - exchange
    sync = None
    if waits is not None:
        sync = _sync_part(intervals(waits).within(work.begin_ns, work.end_ns), pauses, rest)
        rest = rest - sync
    late, short = _launched_late(timeline, work, pauses), length <= LAUNCH_NS

    def share(part: Times | None) -> float | None:
        return None if part is None else work.share(int(part.sum()))

    return told.IdleTime(
        total=work.share(pauses.total_ns),
        data=share(data),
        sync=share(sync),
        launch=None if late is None else share(rest[late & short]),
        host=None if late is None else share(rest[late & ~short]),
        other=None if late is None else share(rest[~late]),
        exchange=share(exchange),
    )


def _sync_part(waits: Intervals, pauses: Intervals, rest: Times) -> Times:
    """How much of each pause all waits before it answer for, as far as they lasted."""
    waited = np.concatenate([[0], np.cumsum(waits.end - waits.start)])
    until = waited[np.searchsorted(waits.start, pauses.start, side="right")]
    paused = np.cumsum(rest)
    unanswered = np.maximum.accumulate(np.maximum(paused - until, 0))  # a later wait is too late
    answered: Times = np.diff(paused - unanswered, prepend=0)
    return answered


def _launched_late(timeline: Timeline, work: DeviceWork, pauses: Intervals) -> Mask | None:
    """For each pause whether the work that ends it was launched after the pause had begun."""
    if not timeline.runtime_calls:
        return None
    begun, launched = [], []
    for events in (work.kernels, work.copies):
        times, known = launch_times(events, timeline.runtime_calls, "begin_ns")
        begun.append(begins(events)[known])
        launched.append(times[known])
    starts, launches = np.concatenate(begun), np.concatenate(launched)
    if not len(starts):
        return None
    order = np.lexsort((launches, starts))
    next_one = np.searchsorted(starts[order], pauses.end, side="left")
    last = np.minimum(next_one, len(starts) - 1)
    late: Mask = launches[order][last] >= pauses.start
    return late | (next_one >= len(starts))
