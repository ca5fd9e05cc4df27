"""Where the device's time goes: kernels by name and kind, their counters, and operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpurun.records import profile_figures as told
from gpurun.timeline.columns import begins, ends, values_of
from gpurun.timeline.device_work import DeviceWork
from gpurun.timeline.kernel_groups import ON_TENSOR_CORES
from gpurun.timeline.model import Copy, Group, Kernel, KernelKind, KernelMetrics, Timeline

TOP = 10
"""Kernels and operators that are listed."""
SHORT_NS = 10_000
"""A kernel shorter than this cannot fill a device: that is a matter of launches."""
FUSABLE = (Group.ELEMENTWISE, Group.NORM, Group.REDUCTION)
"""Kinds of kernels that a compiler joins, as long as no other kernel comes between them."""


@dataclass(frozen=True)
class KindTime:
    """All launches of one kernel in one shape."""

    kind: KernelKind
    calls: int
    ns: float


def time_by_kind(kernels: Sequence[Kernel]) -> list[KindTime]:
    """The time of each kind of kernel."""
    kinds, places = values_of(kernels, "kind")
    calls = np.bincount(places, minlength=len(kinds)).tolist()
    times = np.bincount(places, ends(kernels) - begins(kernels), len(kinds)).tolist()
    rows = zip(kinds, calls, times, strict=True)
    return [KindTime(kind, count, ns) for kind, count, ns in rows if count]


def top_kernels(
    kinds: Sequence[KindTime], timeline: Timeline, work: DeviceWork
) -> tuple[told.KernelShare, ...]:
    """The kernels that take most of the device's time, all launches of one name together."""
    sums: dict[tuple[str, Group, bool | None], list[float]] = defaultdict(lambda: [0.0, 0])
    for each in kinds:
        row = sums[each.kind.name, each.kind.group, each.kind.tensor_core]
        row[0] += each.ns
        row[1] += each.calls
    ranked = sorted(sums.items(), key=lambda row: -row[1][0])[:TOP]
    return tuple(
        told.KernelShare(
            name=name,
            group=group.value,
            share=work.share(ns),
            calls_per_step=timeline.a_step(calls),
            mean_us=ns / calls / 1e3,
            tensor_core=on_cores,
        )
        for (name, group, on_cores), (ns, calls) in ranked
    )


def group_shares(kinds: Sequence[KindTime]) -> dict[str, float]:
    """Time of the kernels by kind of work, over the time of all kernels."""
    sums: dict[Group, float] = defaultdict(float)
    for each in kinds:
        sums[each.kind.group] += each.ns
    total = sum(sums.values())
    ranked = sorted(sums.items(), key=lambda item: -item[1])
    return {group.value: time / total for group, time in ranked} if total else {}


def precision_figures(kinds: Sequence[KindTime], work: DeviceWork) -> told.PrecisionFigures | None:
    """The use of tensor cores; None without kernels that could use them, or if no name tells."""
    able = [each for each in kinds if each.kind.group in ON_TENSOR_CORES]
    inside, outside = (
        sum(each.ns for each in able if each.kind.tensor_core is used) for used in (True, False)
    )
    whole = inside + outside
    return told.PrecisionFigures(inside / whole, work.share(outside)) if whole else None


def top_operators(timeline: Timeline) -> tuple[told.OperatorShare, ...] | None:
    """The operators that take most of the host's time; None where no source records operators."""
    if timeline.operators is None or timeline.window_ns <= 0:
        return None
    ranked = sorted(timeline.operators, key=lambda each: -each.self_ns)[:TOP]
    return tuple(
        told.OperatorShare(
            each.name,
            each.group.value,
            share=each.self_ns / timeline.window_ns,
            calls_per_step=timeline.a_step(each.calls),
            shapes=each.shapes,
        )
        for each in ranked
    )


def is_long(kernel: Kernel) -> bool:
    """It takes so long that it is more than a matter of launches."""
    return kernel.end_ns - kernel.begin_ns >= SHORT_NS


def needless_if_fused(
    work: Iterable[Kernel | Copy], of: Callable[[Kernel], bool] = is_long
) -> Iterator[tuple[int, int]]:
    """Place and length in nanoseconds of each kernel whose work a fused one would do in passing.

    `work` is in ascending order of its begin; `of`: the kernels to look at. Of the kernels of a
    chain that visit as many elements in the same way (same grid, block and template) the longest
    stays. Kernels of other sizes may work on other tensors: they stay, too.
    """
    chains: dict[tuple[int, int], dict[Hashable, tuple[int, int]]] = {}
    for place, record in enumerate(work):
        chain = chains.setdefault((record.device, record.stream), {})
        if isinstance(record, Copy) or record.group not in FUSABLE:
            chain.clear()
        elif record.kind.grid is not None and of(record):
            shape = (record.kind.grid, record.kind.block, record.name.partition(",")[0])
            own = (record.end_ns - record.begin_ns, place)
            if shape in chain:
                length, needless = min(chain[shape], own)
                yield needless, length
                own = max(chain[shape], own)
            chain[shape] = own


def kernel_counters(
    launches: Sequence[KernelMetrics] | None,
) -> tuple[told.KernelCounters, ...] | None:
    """The kernels whose launches took longest in all, longest first; None without any launch."""
    shapes: dict[object, list[KernelMetrics]] = defaultdict(list)
    for launch in launches or ():
        shapes[launch.name, launch.grid, launch.block].append(launch)
    ranked = sorted(shapes.values(), key=lambda shape: -sum(k.duration_ns or 0.0 for k in shape))
    return tuple(map(_together, ranked[:TOP])) or None


def _together(shape: Sequence[KernelMetrics]) -> told.KernelCounters:
    def mean(counter: str) -> float | None:
        known = [value for each in shape if (value := getattr(each, counter)) is not None]
        return sum(known) / len(known) if known else None

    first, duration = shape[0], mean("duration_ns")
    return told.KernelCounters(
        name=first.name,
        launches=len(shape),
        mean_us=None if duration is None else duration / 1e3,
        sm_percent=mean("sm_percent"),
        dram_percent=mean("dram_percent"),
        occupancy_percent=mean("occupancy_percent"),
        warp_efficiency_percent=mean("branch_efficiency_percent"),
        registers=first.registers,
        shared_memory_bytes=first.shared_memory_bytes,
        grid=first.grid,
        block=first.block,
    )
