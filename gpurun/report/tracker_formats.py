"""The figures of benchmarks as trackers of other projects read them.

`customBiggerIsBetter` and `customSmallerIsBetter` are the `tool` of github-action-benchmark: one
file holds figures that should grow, or figures that should shrink, never both. `bencher` is the
Bencher Metric Format (BMF), which also gets the slowdown of a comparison. A figure that was not
measured is left out. So is a benchmark with a failed launch: half a run is no point of a history.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpurun.measure.optional_figures import known
from gpurun.records.bench.benchmark import BenchmarkLaunch, BenchmarkRecord
from gpurun.records.bench.comparison import ComparedSide, Comparison
from gpurun.records.result import StepTime
from gpurun.stats.descriptive import standard_deviation

PEAK = "peak_memory_bytes"
"""The figure of a run is the maximum of its launches; the others are means, which have a spread."""


@dataclass(frozen=True)
class Figure:
    """One figure of a launch. `measure`: its name in BMF, with the unit, which BMF cannot say.

    `bigger`: more of it is better. `field`: its name in records.
    """

    name: str
    unit: str
    measure: str
    bigger: bool
    field: str

    def of(self, one: BenchmarkLaunch | BenchmarkRecord | ComparedSide) -> float | None:
        """Its value; None if it was not measured or is no number."""
        value = getattr(one, self.field)
        value = value.mean if isinstance(value, StepTime) else value
        return value if value is not None and math.isfinite(value) else None


FIGURES = (
    Figure("throughput", "samples/s", "throughput", True, "samples_per_second"),
    Figure("GPU utilisation", "%", "gpu-utilization-percent", True, "gpu_utilization_percent"),
    Figure("step time", "ms", "step-time-ms", False, "step_time_ms"),
    Figure("peak memory", "bytes", "peak-memory-bytes", False, PEAK),
    Figure("energy", "J/sample", "joules-per-sample", False, "joules_per_sample"),
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

    def measured(self) -> Iterator[tuple[Figure, float, float | None]]:
        """Each figure of a whole run, its value, and the standard deviation of its launches."""
        for figure in FIGURES if self.whole else ():
            value, values = figure.of(self.run), list(known(map(figure.of, self.run.launches)))
            if value is not None:
                spread = len(values) > 1 and figure.field != PEAK
                yield figure, value, standard_deviation(values) if spread else None


def tracked(found: Comparison) -> tuple[Tracked, ...]:
    """The current side of a comparison, and of the others that it holds."""
    return (
        Tracked(found.benchmark, found.current, found),
        *(one for other in found.others for one in tracked(other)),
    )


def tracked_records(records: Sequence[BenchmarkRecord]) -> tuple[Tracked, ...]:
    """Runs that were compared with nothing."""
    return tuple(Tracked(record.benchmark, record) for record in records)


def bencher(runs: Sequence[Tracked]) -> dict[str, dict[str, dict[str, float]]]:
    """BMF: by benchmark and measure the value, with one standard deviation to both sides; and the
    fraction of throughput lost, with its interval."""
    documents = {}
    for one in runs:
        measures = {}
        for figure, value, spread in one.measured():
            bounds = None if spread is None else (value - spread, value + spread)
            measures[figure.measure] = _metric(value, bounds)
        found = one.comparison
        if one.whole and found is not None and found.slowdown is not None:
            measures["slowdown"] = _metric(found.slowdown, found.slowdown_confidence_interval)
        if measures:
            documents[one.benchmark] = measures
    return documents


def action_benchmark(runs: Sequence[Tracked], *, bigger: bool) -> list[dict[str, Any]]:
    """Figures that should grow, or shrink, for github-action-benchmark."""
    return [
        {
            "name": f"{one.benchmark}: {figure.name}",
            "unit": figure.unit,
            "value": value,
            **({} if spread is None else {"range": f"± {spread:.4g}"}),
        }
        for one in runs
        for figure, value, spread in one.measured()
        if figure.bigger is bigger
    ]


TRACKERS: Mapping[str, Callable[[Sequence[Tracked]], Any]] = {
    "customBiggerIsBetter": partial(action_benchmark, bigger=True),
    "customSmallerIsBetter": partial(action_benchmark, bigger=False),
    "bencher": bencher,
}
"""By the name that the tracker itself has for it, what makes its document."""


def _metric(value: float, bounds: tuple[float, float] | None) -> dict[str, float]:
    if bounds is None or not all(map(math.isfinite, bounds)):
        return {"value": value}
    return {"value": value, "lower_value": bounds[0], "upper_value": bounds[1]}
