"""The state of GPUs and trainings as Prometheus metrics. One owner of `prometheus_client`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from gpurun.records.monitor import MonitorReport, TrainingState

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    Family = CounterMetricFamily | GaugeMetricFamily

SHORTEST_SECONDS = 0.5
"""The state is looked at so seldom, however often it is scraped."""

GPU_FIGURES = (
    (
        "gpu_utilization_percent",
        "gpu_utilization_percent",
        "SM activity where it is measured, else NVML utilisation.",
    ),
    ("gpu_memory_used_bytes", "memory_used_bytes", "GPU memory in use."),
    ("gpu_memory_total_bytes", "memory_total_bytes", "GPU memory in all."),
    ("gpu_temperature_celsius", "temperature_celsius", "Temperature of the GPU."),
    ("gpu_power_usage_watts", "power_watts", "Power that the GPU draws."),
)
"""Name, field of `GpuState`, meaning."""
RANK_LABELS = ("run", "script", "rank")
TRAINING_FIGURES = (
    ("training_step_time_seconds", "step_time_seconds", "Mean time of the latest steps."),
    (
        "training_samples_per_second",
        "samples_per_second",
        "Samples a second of this rank over the latest steps.",
    ),
    ("training_loss", "loss", "The latest loss; +Inf if it was not finite."),
    ("training_learning_rate", "learning_rate", "Of the first parameter group."),
    (
        "training_last_step_timestamp_seconds",
        "last_step_unix_seconds",
        "When the latest recorded step ended, in seconds since 1970.",
    ),
)
"""Name, field of `RankState`, meaning."""
TRAINING_COUNTS = (
    ("training_steps", "steps", "Steps since the start."),
    ("training_samples", "samples", "Samples since the start, of this rank."),
)
"""The same of counters, to whose names Prometheus adds `_total`."""


class Metrics:
    """A collector of `prometheus_client`. `look` is called by one thread at a time."""

    def __init__(self, look: Callable[[], MonitorReport]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._seen: MonitorReport | None = None
        self._due = 0.0

    def collect(self) -> Iterator[Family]:
        """All figures; one that was not measured has no sample."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        report = self._state()
        for name, field, meaning in GPU_FIGURES:
            family = GaugeMetricFamily(name, meaning, labels=["gpu_id"])
            for gpu in report.gpus:
                _add(family, [str(gpu.gpu_id)], getattr(gpu, field))
            yield family
        for name, field, meaning in TRAINING_FIGURES:
            yield _of_ranks(GaugeMetricFamily(name, meaning, labels=RANK_LABELS), report, field)
        for name, field, meaning in TRAINING_COUNTS:
            yield _of_ranks(CounterMetricFamily(name, meaning, labels=RANK_LABELS), report, field)

    def _state(self) -> MonitorReport:
        with self._lock:
            if self._seen is None or time.monotonic() >= self._due:
                self._seen = self._look()
                self._due = time.monotonic() + SHORTEST_SECONDS
            return self._seen


def _of_ranks(family: Family, report: MonitorReport, field: str) -> Family:
    for training in report.trainings:
        script = _script(training.command)
        for number, rank in zip(_numbers(training), training.ranks, strict=True):
            _add(family, [training.run, script, str(number)], getattr(rank, field))
    return family


def _numbers(training: TrainingState) -> Sequence[int]:
    """A number for each rank, no two alike; processes that a script spawns itself have none."""
    numbers = [rank.rank for rank in training.ranks if rank.rank is not None]
    return numbers if len(numbers) == len(training.ranks) else range(len(training.ranks))


def _script(command: tuple[str, ...]) -> str:
    """The script or module as UTF-8 can hold it; a path may have bytes that are none."""
    name = next((word for word in command if word != "-m"), "")
    return name.encode("utf-8", "backslashreplace").decode()


def _add(family: Family, labels: list[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)
