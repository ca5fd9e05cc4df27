"""Launches: how many kernels a step, how short they are, and how far the host runs ahead."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpurun.records.profile_figures import LaunchFigures
from gpurun.timeline.device_work import DeviceWork, a_step, begins, ends, on_device
from gpurun.timeline.model import Kernel, Timeline
from gpurun.timeline.runtime_calls import launch_times

ALLOCATING = ("cudaMalloc", "cudaFree", "cuMemAlloc", "cuMemFree", "cuMemCreate", "cuMemMap")
"""Calls that take device memory or give it back, and wait for the device meanwhile."""
NOT_ALLOCATING = ("cudaMallocHost", "cudaFreeHost", "cudaMallocAsync", "cudaFreeAsync")


def launch_figures(timeline: Timeline, work: DeviceWork) -> LaunchFigures:
    """The figures of the kernels that the window's device ran."""
    kernels = on_device(timeline.kernels or (), work.device)
    durations = ends(kernels) - begins(kernels)
    pauses = work.window_ns - work.busy.total_ns
    gaps = a_step(pauses / 1e6, timeline)
    return LaunchFigures(
        kernels_per_step=a_step(len(kernels), timeline),
        mean_kernel_us=float(durations.mean()) / 1e3,
        gap_ms_per_step=gaps,
        queue_depth=_queue_depth(timeline, kernels, work),
        small_grid_share=_small_grids(timeline, kernels, work),
        device_allocations_per_step=_device_allocations(timeline),
    )


def _queue_depth(timeline: Timeline, kernels: Sequence[Kernel], work: DeviceWork) -> float | None:
    """Mean number of launched kernels that have not begun: their waits over the window (Little)."""
    if not timeline.runtime_calls:
        return None
    launched, known = launch_times(kernels, timeline.runtime_calls, "end_ns")
    if not known.any():
        return None
    return float(np.maximum(begins(kernels) - launched, 0)[known].sum()) / work.window_ns


def _small_grids(timeline: Timeline, kernels: Sequence[Kernel], work: DeviceWork) -> float | None:
    counts = [d.multiprocessors for d in timeline.devices or () if d.index == work.device]
    if not counts or counts[0] is None or any(k.kind.grid is None for k in kernels):
        return None
    durations = ends(kernels) - begins(kernels)
    grids = (math.prod(kernel.kind.grid or ()) for kernel in kernels)
    blocks = np.fromiter(grids, np.int64, len(kernels))
    total = int(durations.sum())
    return float(durations[blocks < counts[0]].sum()) / total if total else None


def _device_allocations(timeline: Timeline) -> float | None:
    if timeline.runtime_calls is None:
        return None
    calls = sum(
        call.name.startswith(ALLOCATING) and not call.name.startswith(NOT_ALLOCATING)
        for call in timeline.runtime_calls
    )
    return a_step(calls, timeline)
