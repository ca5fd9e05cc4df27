"""Where the device's time goes: kernels by name and kind, tensor cores, and operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.records.profile_figures import KernelShare, OperatorShare, PrecisionFigures
from gpurun.timeline.device_work import DeviceWork, a_step, on_device
from gpurun.timeline.kernel_groups import ON_TENSOR_CORES
from gpurun.timeline.model import Group, Kernel, Timeline

TOP = 10
"""Kernels and operators that are listed."""


@dataclass
class _Sum:
    calls: int = 0
    nanoseconds: int = 0


def top_kernels(timeline: Timeline, work: DeviceWork) -> tuple[KernelShare, ...]:
    """The kernels that take most of the device's time, all launches of one name together."""
    sums: dict[tuple[str, Group, bool | None], _Sum] = defaultdict(_Sum)
    for kernel in _kernels(timeline, work):
        of = sums[kernel.name, kernel.group, kernel.tensor_core]
        of.calls += 1
        of.nanoseconds += kernel.end_ns - kernel.begin_ns
    ranked = sorted(sums.items(), key=lambda item: -item[1].nanoseconds)[:TOP]
    return tuple(
        KernelShare(
            name=name,
            group=group.value,
            share=work.share(of.nanoseconds),
            calls_per_step=a_step(of.calls, timeline),
            mean_us=of.nanoseconds / of.calls / 1e3,
            tensor_core=tensor_core,
        )
        for (name, group, tensor_core), of in ranked
    )


def group_shares(timeline: Timeline, work: DeviceWork) -> dict[str, float]:
    """Time of the kernels by kind, over the time of all kernels."""
    sums: dict[Group, int] = defaultdict(int)
    for kernel in _kernels(timeline, work):
        sums[kernel.group] += kernel.end_ns - kernel.begin_ns
    total = sum(sums.values())
    ranked = sorted(sums.items(), key=lambda item: -item[1])
    return {group.value: time / total for group, time in ranked} if total else {}


def precision_figures(timeline: Timeline, work: DeviceWork) -> PrecisionFigures | None:
    """The use of tensor cores; None without kernels that could use them, or if no name tells."""
    inside = outside = 0
    for kernel in _kernels(timeline, work):
        if kernel.group in ON_TENSOR_CORES and kernel.tensor_core is not None:
            length = kernel.end_ns - kernel.begin_ns
            inside, outside = (
                (inside + length, outside) if kernel.tensor_core else (inside, outside + length)
            )
    if not inside + outside:
        return None
    return PrecisionFigures(inside / (inside + outside), work.share(outside))


def top_operators(timeline: Timeline) -> tuple[OperatorShare, ...] | None:
    """The operators that take most of the host's time; None where no source records operators."""
    if timeline.operators is None or timeline.window_ns <= 0:
        return None
    ranked = sorted(timeline.operators, key=lambda operator: -operator.self_ns)[:TOP]
    return tuple(
        OperatorShare(
            name=operator.name,
            group=operator.group.value,
            share=operator.self_ns / timeline.window_ns,
            calls_per_step=a_step(operator.calls, timeline),
        )
        for operator in ranked
    )


def _kernels(timeline: Timeline, work: DeviceWork) -> Sequence[Kernel]:
    return on_device(timeline.kernels or (), work.device)
