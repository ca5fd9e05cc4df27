"""The figures of a launch that are compared, and the check that two launches did the same work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpurun.bench.benchmark_launcher import Launch
from gpurun.errors import ExitCode, GpurunError
from gpurun.records.bench.benchmark import BenchmarkLaunch, BenchmarkRecord
from gpurun.records.bench.metrics import Metric
from gpurun.records.effects import ALLOW_ALL
from gpurun.records.result import RunResult


@dataclass(frozen=True)
class Work:
    """The work of a launch: samples a step, parameters of its model, and its training steps.

    None: not known; the steps of a launch that was stopped say nothing of its work.
    """

    batch_size: float | None
    parameters: int | None
    steps: int | None

    @classmethod
    def of(cls, launch: Launch) -> Work:
        """The work of a finished launch."""
        steps = launch.result.steps if launch.whole else None
        return cls(launch.result.batch_size, launch.parameters, steps)

    def difference(self, before: Work, there: str = " in the baseline") -> str | None:
        """The first thing that differs, in words. `there`: where `before` was measured."""
        figures: list[tuple[str, float | None, float | None]] = [
            ("batch size", self.batch_size, before.batch_size),
            ("number of parameters", self.parameters, before.parameters),
            ("number of steps", self.steps, before.steps),
        ]
        for name, now, then in figures:
            if now is not None and then is not None and now != then:
                return f"the {name} is {now:,.10g}, and {then:,.10g}{there}"
        return None


def figure(
    metric: Metric, of: RunResult | BenchmarkLaunch | BenchmarkRecord, by_samples: bool
) -> float | None:
    """The figure that is gated or followed, None where it was not measured.

    Units: throughput in samples/s (steps/s without `by_samples`), step time in seconds, peak memory
    in bytes, energy in joules a sample (of the window if samples cannot be counted), utilization in
    percent.
    """
    step = None if of.step_time_ms is None else of.step_time_ms.mean
    if metric is Metric.THROUGHPUT:
        if by_samples:
            return of.samples_per_second
        return 1000 / step if step else None
    if metric is Metric.STEP_TIME:
        return None if step is None else step / 1000
    if metric is Metric.PEAK_MEMORY:
        return of.peak_memory_bytes
    if metric is Metric.GPU_UTILIZATION:
        return of.gpu_utilization_percent
    return of.joules_per_sample if by_samples else of.energy_joules


def check_workload(
    baseline: Launch, current: Launch, batch_may_differ: Sequence[Metric] | None = None
) -> str | None:
    """`GpurunError` (exit code 4) where two launches, one of each side, did unequal work.

    `batch_may_differ`: the gated metrics, where the user allows batches of unequal size. The line
    that is returned then says so.
    """
    before, now = Work.of(baseline), Work.of(current)
    unequal = before.batch_size and now.batch_size and before.batch_size != now.batch_size
    counted = (baseline.result.samples_per_second, current.result.samples_per_second)
    todo = (
        "compare equal work: name the same value on both sides, as in args of [bench], or compare "
        "from the commit on that changed it"
    )
    if batch_may_differ is None or not unequal or None in counted:
        settings = f", or two settings with {ALLOW_ALL}" if unequal else ""
        refuse_changed(now.difference(before), f"{todo}{settings}")
        return None
    refuse_changed(replace(now, batch_size=None, steps=None).difference(before), todo)
    if Metric.STEP_TIME in batch_may_differ:
        raise GpurunError(
            "the step time cannot compare batches of unequal size",
            "gate the throughput instead: --metrics throughput",
        )
    return (
        f"the batch size is {before.batch_size:,.10g} and {now.batch_size:,.10g}, as allowed: "
        "gpurun compares samples/s, and the training is not the same"
    )


def refuse_changed(difference: str | None, todo: str) -> None:
    """`GpurunError` (exit code 4) if there is a difference in work, with what to do about it."""
    if difference is not None:
        raise GpurunError(f"the workload has changed: {difference}", todo, ExitCode.NO_BASELINE)


def without_effect(launch: Launch) -> list[str]:
    """The settings of a launch that did not apply there, and why, a line each."""
    if launch.start.applied is None:
        return []
    return [
        f"{one.knob} was not applied ({one.outcome}): {one.detail}"
        for one in launch.result.knobs
        if one.outcome != "applied"
    ]
