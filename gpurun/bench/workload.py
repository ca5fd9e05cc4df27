"""What of a launch is compared, and whether two launches did the same work."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.bench.launches import Launch
from gpurun.bench.metrics import Metric
from gpurun.errors import ExitCode, GpurunError


def figure(metric: Metric, launch: Launch, by_samples: bool) -> float | None:
    """The figure of a launch that is gated, None where it was not measured.

    The throughput is in samples/s, in steps/s without `by_samples`; the step time in seconds, the
    peak memory in bytes, the energy in joules a sample (of the window where none can be counted).
    """
    result = launch.result
    if metric is Metric.THROUGHPUT:
        return result.samples_per_second if by_samples else launch.steps_per_second
    if metric is Metric.STEP_TIME:
        return None if result.step_time_ms is None else result.step_time_ms.mean / 1000
    if metric is Metric.PEAK_MEMORY:
        return result.peak_memory_bytes
    return result.joules_per_sample if by_samples else result.energy_joules


PER_BATCH = (Metric.STEP_TIME,)
"""What says nothing of two batches of unequal size."""


def check_workload(
    baseline: Launch, current: Launch, batch_may_differ: Sequence[Metric] | None = None
) -> str | None:
    """`GpurunError` (exit code 4) where two launches, one of each side, did unequal work.

    `batch_may_differ`: the gated metrics, where the user allows batches of unequal size. The line
    that is returned then says so.
    """
    one, other = baseline.result, current.result
    batches = ("batch size", one.batch_size, other.batch_size)
    steps: tuple[tuple[str, float | None, float | None], ...] = ()
    if baseline.whole and current.whole:
        steps = (("number of steps", one.steps, other.steps),)
    _refuse_unequal(("number of parameters", baseline.parameters, current.parameters))
    counted = one.samples_per_second is not None and other.samples_per_second is not None
    if batch_may_differ is None or not _unequal(batches) or not counted:
        _refuse_unequal(batches, *steps)
        return None
    if any(metric in PER_BATCH for metric in batch_may_differ):
        raise GpurunError(
            "the step time says nothing of batches of unequal size",
            "gate the throughput instead: --metrics throughput",
        )
    return (
        f"the batch size is {one.batch_size:,.10g} and {other.batch_size:,.10g}, as is allowed: "
        "what is compared is samples/s, and the training is not the same"
    )


def _unequal(figures: tuple[str, float | None, float | None]) -> bool:
    _, before, now = figures
    return before is not None and now is not None and before != now


def _refuse_unequal(*figures: tuple[str, float | None, float | None]) -> None:
    for name, before, now in filter(_unequal, figures):
        raise GpurunError(
            f"the workload has changed: the {name} is {now:,.10g}, and {before:,.10g} in the "
            "baseline",
            "compare equal work: name the same value on both sides, as in args of [bench], "
            "or compare from the commit on that changed it",
            ExitCode.NO_BASELINE,
        )


def without_effect(launch: Launch) -> list[str]:
    """The settings of a launch that did not apply there, and why, a line each."""
    if launch.start.settled is None:
        return []
    return [
        f"{one.knob} was not applied ({one.outcome}): {one.detail}"
        for one in launch.result.knobs
        if one.outcome != "applied"
    ]


def disturbance(baseline: Launch, current: Launch) -> str | None:
    """Why a pair says nothing about the trees: what befell one half of it alone, by records.

    Never by its timing: pairs that are dropped for their figures would bias the verdict.
    """
    throttled = [_throttled(launch) for launch in (baseline, current)]
    for name, own, of_other in (
        ("baseline", throttled[0], throttled[1]),
        ("current", throttled[1], throttled[0]),
    ):
        if own - of_other:
            return f"the GPU was throttled in the {name} half only ({', '.join(sorted(own))})"
    beside = [_foreign(launch) for launch in (baseline, current)]
    if None not in beside and any(beside) and not all(beside):
        half = "baseline" if beside[0] else "current"
        return f"another process computed on the GPU in the {half} half only"
    return None


def _throttled(launch: Launch) -> set[str]:
    return {reason for device in launch.result.devices for reason in device.throttle_reasons}


def _foreign(launch: Launch) -> int | None:
    counts = [d.foreign_processes for d in launch.result.devices if d.foreign_processes is not None]
    return max(counts, default=None)
