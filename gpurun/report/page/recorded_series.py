"""Series of a run over steps and over time: loss, activity, memory, power, use of the processor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gpurun.measure.resource_use import Samples
from gpurun.measure.training_clock import RecordedClock
from gpurun.records.samples import DeviceSample, HostSample
from gpurun.report.page.charts import Point

GIB = 1024.0**3
NS = 1e9
MOST_POINTS = 400
"""Points of a thinned series: a picture is not wider in pixels."""
MOST_DEVICES = 3
"""More devices than these are drawn as the lowest, the highest and the mean of them."""
LEAST_SECONDS = 0.2
"""Use of the processor is counted in hundredths of a second: shorter spans are joined."""


@dataclass(frozen=True)
class Series:
    """A thinned series; `low` and `high` are those of all its values.

    `mean`: of its values while steps were measured, else of all.
    """

    name: str
    points: tuple[Point, ...]
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Gauge:
    """Series that belong into one picture, over seconds since the first sample."""

    title: str
    unit: str
    series: tuple[Series, ...]
    means: tuple[float, ...] = ()
    """The mean of each device, where the series are of all devices together."""


@dataclass(frozen=True)
class LossSeries:
    """The loss by step, where it was looked at. `not_finite`: steps whose loss was NaN or inf."""

    series: Series
    not_finite: int


def series_of(name: str, points: Sequence[Point], steady: Point | None = None) -> Series | None:
    """The series of finite values; None if there is none. `steady`: where the mean is taken."""
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    if not finite:
        return None
    values = [y for _, y in finite]
    return Series(name, thinned(finite), _mean(finite, steady), min(values), max(values))


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """At most `most` of the points, in their order.

    First and last point stay; of each stretch between them the lowest and the highest stay.
    """
    if len(points) <= most:
        return tuple(points)
    inner = points[1:-1]
    stretches = max((most - 2) // 2, 1)
    kept = [points[0]]
    for number in range(stretches):
        begin = number * len(inner) // stretches
        end = (number + 1) * len(inner) // stretches
        stretch = range(begin, end)
        lowest = min(stretch, key=lambda i: inner[i][1])
        highest = max(stretch, key=lambda i: inner[i][1])
        kept += [inner[i] for i in sorted({lowest, highest})]
    return (*kept, points[-1])


def _mean(points: Sequence[Point], steady: Point | None) -> float:
    """The mean by time between two ends, each value holding since the one before; else of all."""
    begin, end = steady or (math.inf, -math.inf)
    inside = [(x, y) for x, y in points if begin <= x <= end]
    if inside and inside[-1][0] > inside[0][0]:
        weighted = math.fsum(y * (x - earlier) for (earlier, _), (x, y) in pairwise(inside))
        return weighted / (inside[-1][0] - inside[0][0])
    values = [y for _, y in inside or points]
    return math.fsum(values) / len(values)


def loss_curve(clock: RecordedClock) -> LossSeries | None:
    """The loss that a process looked at, by the number of the step; None if it never did."""
    losses = clock.steps.loss
    series = series_of("loss", [(n, loss) for n, loss in enumerate(losses, 1) if loss == loss])
    infinite = sum(1 for loss in losses if math.isinf(loss))
    return None if series is None else LossSeries(series, infinite)


def gauges_of(samples: Samples, bounds_ns: tuple[int, int] | None = None) -> tuple[Gauge, ...]:
    """The pictures that the samples of a run allow.

    `bounds_ns`: the wall clock at both ends of the measured steps.
    """
    devices: dict[str, list[DeviceSample]] = {}
    for sample in samples.device:
        devices.setdefault(sample.uuid, []).append(sample)
    groups = list(devices.values())
    found = [
        _activity(groups, bounds_ns),
        _of_devices(groups, "GPU memory", "GiB", lambda s: _gib(s.memory_used_bytes), bounds_ns),
        _of_devices(groups, "GPU power", "W", lambda s: s.power_watts, bounds_ns),
    ]
    if not groups:
        found += _of_host(samples.host, bounds_ns)
    return tuple(gauge for gauge in found if gauge is not None)


def _activity(
    groups: Sequence[Sequence[DeviceSample]], bounds_ns: tuple[int, int] | None
) -> Gauge | None:
    """Activity by device; of a single device also by unit."""
    if len(groups) != 1:
        return _of_devices(groups, "GPU activity", "%", _busy, bounds_ns)
    (samples,) = groups
    figures: tuple[tuple[str, Callable[[DeviceSample], float | None]], ...] = (
        ("SM activity", lambda s: s.sm_activity_percent),
        ("tensor cores", lambda s: s.tensor_activity_percent),
        ("DRAM", lambda s: s.dram_activity_percent),
    )
    if all(s.sm_activity_percent is None for s in samples):
        figures = (("NVML utilisation", lambda s: s.utilization_percent),)
    steady = _steady(samples, bounds_ns)
    told = [series_of(name, _points(samples, figure), steady) for name, figure in figures]
    return _gauge("GPU activity", "%", told)


def _busy(sample: DeviceSample) -> float | None:
    activity = sample.sm_activity_percent
    return sample.utilization_percent if activity is None else activity


def _gib(count: int | None) -> float | None:
    return None if count is None else count / GIB


def _of_devices(
    groups: Sequence[Sequence[DeviceSample]],
    title: str,
    unit: str,
    figure: Callable[[DeviceSample], float | None],
    bounds_ns: tuple[int, int] | None,
) -> Gauge | None:
    if not groups:
        return None
    steady = _steady(groups[0], bounds_ns)
    names = [f"GPU {_index(group[0], n)}: {group[0].name}" for n, group in enumerate(groups)]
    points = [_points(group, figure) for group in groups]
    if len(groups) > MOST_DEVICES:
        return _of_many(points, title, unit, steady)
    return _gauge(
        title, unit, [series_of(n, p, steady) for n, p in zip(names, points, strict=True)]
    )


def _of_many(
    devices: Sequence[Sequence[Point]], title: str, unit: str, steady: Point | None
) -> Gauge | None:
    """The lowest, the highest and the mean device at each sample."""
    measured = [points for points in devices if points]
    ticks = [(t[0][0], [value for _, value in t]) for t in zip(*measured, strict=False)]
    figures: tuple[tuple[str, Callable[[list[float]], float]], ...] = (
        ("lowest GPU", min),
        ("highest GPU", max),
        (f"mean of {len(measured)} GPUs", lambda values: sum(values) / len(values)),
    )
    told = [
        series_of(name, [(second, figure(values)) for second, values in ticks], steady)
        for name, figure in figures
    ]
    gauge = _gauge(title, unit, told)
    means = tuple(_mean(points, steady) for points in measured)
    return None if gauge is None else replace(gauge, means=means)


def _steady(
    samples: Sequence[DeviceSample] | Sequence[HostSample], bounds_ns: tuple[int, int] | None
) -> Point | None:
    """Both ends of the measured steps in seconds since the first sample."""
    if bounds_ns is None:
        return None
    begin = samples[0].unix_time_ns
    return (bounds_ns[0] - begin) / NS, (bounds_ns[1] - begin) / NS


def _index(sample: DeviceSample, number: int) -> int:
    return number if sample.cuda_index is None else sample.cuda_index


def _points(
    samples: Sequence[DeviceSample], figure: Callable[[DeviceSample], float | None]
) -> list[Point]:
    """The figure over seconds since the first sample, where it was measured."""
    begin = samples[0].unix_time_ns
    return [
        ((s.unix_time_ns - begin) / NS, value) for s in samples if (value := figure(s)) is not None
    ]


def _of_host(
    samples: Sequence[HostSample], bounds_ns: tuple[int, int] | None
) -> list[Gauge | None]:
    """Cores and memory that the script's processes use, of a run without a GPU."""
    if len(samples) < 2:
        return []
    begin, steady = samples[0].unix_time_ns, _steady(samples, bounds_ns)
    memory = [((s.unix_time_ns - begin) / NS, s.rss_bytes / GIB) for s in samples]
    cores = series_of("cores in use", _cores(samples), steady)
    return [
        _gauge("Processor", "cores", [cores]),
        _gauge("Memory of the processes", "GiB", [series_of("memory", memory, steady)]),
    ]


def _cores(samples: Sequence[HostSample]) -> list[Point]:
    begin, points = samples[0].unix_time_ns, []
    kept = samples[0]
    for sample in samples[1:]:
        span = (sample.unix_time_ns - kept.unix_time_ns) / NS
        if span < LEAST_SECONDS:
            continue
        used = max(sample.cpu_seconds - kept.cpu_seconds, 0.0) / span
        points.append(((sample.unix_time_ns - begin) / NS, used))
        kept = sample
    return points


def _gauge(title: str, unit: str, series: Iterable[Series | None]) -> Gauge | None:
    measured = tuple(one for one in series if one is not None)
    return Gauge(title, unit, measured) if measured else None
