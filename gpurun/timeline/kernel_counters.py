"""The counters of Nsight Compute by kernel: all launches of one shape together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from gpurun.records.profile_figures import KernelCounters
from gpurun.timeline.kernel_time import TOP
from gpurun.timeline.model import KernelMetrics


def kernel_counters(
    launches: Sequence[KernelMetrics] | None,
) -> tuple[KernelCounters, ...] | None:
    """The kernels whose launches took longest in all, longest first; None without any launch."""
    if not launches:
        return None
    shapes: dict[object, list[KernelMetrics]] = defaultdict(list)
    for launch in launches:
        shapes[launch.name, launch.grid, launch.block].append(launch)
    ranked = sorted(shapes.values(), key=lambda shape: -sum(k.duration_ns or 0.0 for k in shape))
    return tuple(map(_together, ranked[:TOP]))


def _together(shape: Sequence[KernelMetrics]) -> KernelCounters:
    first = shape[0]
    duration = _mean(launch.duration_ns for launch in shape)
    return KernelCounters(
        name=first.name,
        launches=len(shape),
        mean_us=None if duration is None else duration / 1e3,
        sm_percent=_mean(launch.sm_percent for launch in shape),
        dram_percent=_mean(launch.dram_percent for launch in shape),
        occupancy_percent=_mean(launch.occupancy_percent for launch in shape),
        warp_efficiency_percent=_mean(launch.branch_efficiency_percent for launch in shape),
        registers=first.registers,
        shared_memory_bytes=first.shared_memory_bytes,
        grid=first.grid,
        block=first.block,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
