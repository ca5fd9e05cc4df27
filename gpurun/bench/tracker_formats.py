"""The figures of benchmarks as trackers of other projects read them.

`customBiggerIsBetter` and `customSmallerIsBetter` are the `tool` of github-action-benchmark: one
file holds figures that should grow, or figures that should shrink, never both. `bencher` is the
Bencher Metric Format (BMF). A figure that was not measured is left out. So is a benchmark with a
failed launch: half a run is no point of a history.

For a comparison, trackers get its current side. BMF also gets the slowdown, the only figure without
the machine's drift.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpurun.measure.optional_figures import known
from gpurun.records.bench.benchmark import BenchmarkLaunch, BenchmarkRecord
from gpurun.records.bench.comparison import ComparedSide, Comparison
from gpurun.stats.descriptive import standard_deviation


@dataclass(frozen=True)
class Figure:
    """One figure of a launch. `measure`: its name in BMF, with the unit, which BMF cannot say.

    `bigger`: more of it is better. `averaged`: the figure of a run is the mean of its launches, and
    their standard deviation is its range; else it is their maximum.
    """

    name: str
    unit: str
    measure: str
    bigger: bool
    value: Callable[[BenchmarkLaunch | BenchmarkRecord | ComparedSide], float | None]
    averaged: bool = True


FIGURES = (
    Figure("throughput", "samples/s", "throughput", True, lambda one: one.samples_per_second),
    Figure(
        "GPU utilisation",
        "%",
        "gpu-utilization-percent",
        True,
        lambda one: one.gpu_utilization_percent,
    ),
    Figure(
        "step time",
        "ms",
        "step-time-ms",
        False,
        lambda one: None if one.step_time_ms is None else one.step_time_ms.mean,
    ),
    Figure(
        "peak memory",
        "bytes",
        "peak-memory-bytes",
        False,
        lambda one: one.peak_memory_bytes,
        averaged=False,
    ),
    Figure("energy", "J/sample", "joules-per-sample", False, lambda one: one.joules_per_sample),
)


@dataclass(frozen=True)
class Tracked:
    """One benchmark with the figures of its run; `comparison` if it was compared."""

    benchmark: str
    run: BenchmarkRecord | ComparedSide
    comparison: Comparison | None = None

    @property
    def whole(self) -> bool:
        """True if there is a run and none of its launches failed."""
        launches = self.run.launches
        return bool(launches) and not any(launch.error for launch in launches)

    def value(self, figure: Figure) -> float | None:
        """The figure of the run; None if it was not measured or is no number."""
        value = figure.value(self.run)
        return value if value is not None and math.isfinite(value) else None

    def spread(self, figure: Figure) -> float | None:
        """The standard deviation of its launches; None with fewer than two."""
        values = [v for v in known(map(figure.value, self.run.launches)) if math.isfinite(v)]
        if not figure.averaged or len(values) < 2:
            return None
        return standard_deviation(values)


def tracked(found: Comparison) -> tuple[Tracked, ...]:
    """The current side of a comparison, and of the others that it holds."""
    return (
        Tracked(found.benchmark, found.current, found),
        *(one for other in found.others for one in tracked(other)),
    )


def tracked_records(records: Sequence[BenchmarkRecord]) -> tuple[Tracked, ...]:
    """Runs that were compared with nothing."""
    return tuple(Tracked(record.benchmark, record) for record in records)


def bigger_is_better(runs: Sequence[Tracked]) -> list[dict[str, Any]]:
    """Figures that should grow, for github-action-benchmark's `customBiggerIsBetter`."""
    return _action_benchmark(runs, bigger=True)


def smaller_is_better(runs: Sequence[Tracked]) -> list[dict[str, Any]]:
    """Figures that should shrink, for its `customSmallerIsBetter`."""
    return _action_benchmark(runs, bigger=False)


def bencher(runs: Sequence[Tracked]) -> dict[str, dict[str, dict[str, float]]]:
    """BMF: by benchmark and measure the value, with one standard deviation to both sides."""
    documents = {}
    for one in runs:
        measures = {}
        for figure, value in _measured(one):
            measures[figure.measure] = _metric(value, one.spread(figure))
        if one.whole and one.comparison is not None and one.comparison.slowdown is not None:
            measures["slowdown"] = _slowdown(one.comparison)
        if measures:
            documents[one.benchmark] = measures
    return documents


TRACKERS: Mapping[str, Callable[[Sequence[Tracked]], Any]] = {
    "customBiggerIsBetter": bigger_is_better,
    "customSmallerIsBetter": smaller_is_better,
    "bencher": bencher,
}
"""By the name that the tracker itself has for it, what makes its document."""


def _measured(one: Tracked) -> list[tuple[Figure, float]]:
    if not one.whole:
        return []
    values = [(figure, one.value(figure)) for figure in FIGURES]
    return [(figure, value) for figure, value in values if value is not None]


def _action_benchmark(runs: Sequence[Tracked], bigger: bool) -> list[dict[str, Any]]:
    entries = []
    for one in runs:
        for figure, value in _measured(one):
            if figure.bigger is not bigger:
                continue
            spread = one.spread(figure)
            entries.append(
                {
                    "name": f"{one.benchmark}: {figure.name}",
                    "unit": figure.unit,
                    "value": value,
                    **({} if spread is None else {"range": f"± {spread:.4g}"}),
                    "extra": "\n".join(_extra(one, figure)),
                }
            )
    return entries


def _extra(one: Tracked, figure: Figure) -> list[str]:
    """Lines for the tooltip of a point."""
    lines = [f"launches: {len(one.run.launches)}"]
    if isinstance(one.run, BenchmarkRecord):
        lines += [f"device: {one.run.device}"] if one.run.device else []
    elif one.comparison is not None:
        before = figure.value(one.comparison.baseline)
        lines += [] if before is None else [f"baseline: {before:.6g} {figure.unit}"]
        lines.append(f"verdict: {one.comparison.verdict}")
    return lines


def _metric(value: float, spread: float | None) -> dict[str, float]:
    if spread is None:
        return {"value": value}
    return {"value": value, "lower_value": value - spread, "upper_value": value + spread}


def _slowdown(found: Comparison) -> dict[str, float]:
    """The fraction of throughput lost, with its interval."""
    assert found.slowdown is not None
    metric = {"value": found.slowdown}
    bounds = found.slowdown_confidence_interval
    if bounds is not None and all(map(math.isfinite, bounds)):
        metric |= {"lower_value": bounds[0], "upper_value": bounds[1]}
    return metric
