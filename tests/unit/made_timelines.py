"""Timelines made by hand, whose replay can be computed by hand. Times are in microseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpurun.records.profile_figures import ReplayFigures, WhatIf
from gpurun.replay.replay_check import StepTimes, replayed_timeline
from gpurun.timeline.model import (
    Awaited,
    Copy,
    CopyKind,
    Group,
    Kernel,
    KernelKind,
    Phase,
    Range,
    RuntimeCall,
    Timeline,
)

MAIN, AUTOGRAD, OTHER = 1, 2, 3


@dataclass
class Made:
    """A recording that is written down call by call."""

    calls: list[RuntimeCall] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    steps: list[Range] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    awaited: list[Awaited] = field(default_factory=list)

    def call(self, name: str, begin: float, end: float, thread: int = MAIN) -> int:
        """One call; its correlation."""
        number = len(self.calls) + 1
        self.calls.append(RuntimeCall(ns(begin), ns(end), thread, number, name))
        return number

    def kernel(
        self,
        launch: tuple[float, float],
        run: tuple[float, float],
        *,
        stream: int = 7,
        thread: int = MAIN,
        group: Group = Group.OTHER,
        name: str = "kernel",
        grid: tuple[int, int, int] | None = None,
    ) -> int:
        """A launch and its kernel."""
        number = self.call("cudaLaunchKernel", *launch, thread)
        kind = KernelKind(name, group, grid=grid)
        self.kernels.append(Kernel(ns(run[0]), ns(run[1]), 0, stream, number, kind))
        return number

    def copy(
        self,
        call: tuple[float, float],
        run: tuple[float, float],
        *,
        pageable: bool,
        kind: CopyKind = CopyKind.H2D,
        size: int = 1_000_000,
    ) -> int:
        """A copy between host and device."""
        number = self.call("cudaMemcpyAsync", *call)
        self.copies.append(Copy(ns(run[0]), ns(run[1]), 0, 7, number, size, kind, pageable))
        return number

    def step(self, begin: float, end: float) -> None:
        """The bounds of a step on the host."""
        self.steps.append(Range(ns(begin), ns(end), MAIN, Phase.STEP.value))

    def timeline(self, rank: int | None = None) -> Timeline:
        """All of it."""
        return Timeline(
            sources=("steps", "kineto"),
            window_begin_ns=self.steps[0].begin_ns if self.steps else 0,
            window_end_ns=self.steps[-1].end_ns if self.steps else 0,
            rank=rank,
            steps=tuple(self.steps),
            ranges=tuple(self.ranges),
            kernels=tuple(sorted(self.kernels, key=lambda each: each.begin_ns)),
            copies=tuple(sorted(self.copies, key=lambda each: each.begin_ns)),
            runtime_calls=tuple(sorted(self.calls, key=lambda each: each.begin_ns)),
            awaited=tuple(self.awaited) or None,
        )


def replayed(
    timeline: Timeline, times: StepTimes | None = None, *, workers: bool = False
) -> tuple[ReplayFigures, tuple[WhatIf, ...]]:
    """The figures of a replay and its table."""
    figures, replay = replayed_timeline(timeline, times, workers=workers)
    return figures, () if replay is None else replay.what_if(matched=figures.mismatch is None)


def deviations(figures: ReplayFigures) -> dict[str, float]:
    """By how much each replayed time differs, as a share of the step."""
    pairs = {
        "step": (figures.measured_ms, figures.replayed_ms),
        "wait": (figures.measured_wait_ms, figures.replayed_wait_ms),
        "idle": (figures.measured_idle_ms, figures.replayed_idle_ms),
        "plain": (figures.plain_step_ms, figures.replayed_plain_ms),
    }
    step = figures.measured_ms or float("nan")
    return {
        name: abs(found - real) / step
        for name, (real, found) in pairs.items()
        if real is not None and found is not None
    }


def ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def device_bound(steps: int = 6) -> Made:
    """A kernel of 100 µs a step, launched 10 µs after the one before: the host runs ahead.

    The device's step is 101 µs: a kernel begins 1 µs after the one before.
    """
    made = Made()
    end = 0.0
    for number in range(steps):
        at = 20.0 * number
        begin = max(at + 12, end + 1)
        end = begin + 100
        made.kernel((at, at + 10), (begin, end))
        made.step(at, at + 15)
    return made


def host_bound(steps: int = 6) -> Made:
    """A kernel of 10 µs a step that the host launches each 100 µs, within 10 µs."""
    made = Made()
    for number in range(steps):
        at = 100.0 * number
        made.kernel((at, at + 10), (at + 12, at + 22))
        made.step(at, at + 50)
    return made


def sync_bound(steps: int = 6, name: str = "cudaDeviceSynchronize") -> Made:
    """A step: 10 µs of launch, a kernel of 60 µs, a wait for it, and 22 µs of Python.

    The call returns 3 µs after the kernel; the step takes 100 µs.
    """
    made = Made()
    for number in range(steps):
        at = 100.0 * number
        made.kernel((at, at + 10), (at + 12, at + 72))
        made.call(name, at + 15, at + 75)
        made.step(at, at + 78)
    return made
