"""Small timelines made by hand: one device, times in microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpurun.timeline.model import (
    Copy,
    CopyKind,
    Device,
    Group,
    Kernel,
    KernelKind,
    Phase,
    Range,
    RuntimeCall,
    Timeline,
)

US = 1000


def kernel(
    begin: int,
    end: int,
    name: str = "relu",
    group: Group = Group.ELEMENTWISE,
    correlation: int = 0,
    **kind: Any,
) -> Kernel:
    return Kernel(begin * US, end * US, 0, 7, correlation, KernelKind(name, group, **kind))


def copy(begin: int, end: int, pageable: bool = False, correlation: int = 0) -> Copy:
    return Copy(begin * US, end * US, 0, 7, correlation, 1 << 20, CopyKind.H2D, pageable)


def launch(
    at: int, correlation: int, name: str = "cudaLaunchKernel", until: int = 0
) -> RuntimeCall:
    return RuntimeCall(at * US, (until or at + 5) * US, 1, correlation, name)


def sync(begin: int, end: int) -> RuntimeCall:
    return launch(begin, 0, "cudaStreamSynchronize", end)


def phase(which: Phase, begin: int, end: int) -> Range:
    return Range(begin * US, end * US, 1, which.value)


def steps(count: int, length: int) -> list[Range]:
    return [phase(Phase.STEP, i * length, (i + 1) * length) for i in range(count)]


def timeline(window: int, kernels: Sequence[Kernel] | None = None, **parts: Any) -> Timeline:
    return Timeline(
        sources=("kineto",), window_begin_ns=0, window_end_ns=window * US, kernels=kernels, **parts
    )


def device(multiprocessors: int | None = 132) -> Device:
    return Device(0, "NVIDIA H200", multiprocessors, (9, 0))
