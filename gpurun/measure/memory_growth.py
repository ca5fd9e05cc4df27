"""Memory that grows until a run ends: a list that keeps tensors, a cache without a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpurun.formatting.number_text import byte_size, duration, percent
from gpurun.measure.machine import available_memory
from gpurun.measure.resource_use import Samples
from gpurun.records.result import MemoryGrowth
from gpurun.stats.descriptive import median

LEAST_SECONDS = 60.0
"""Within less time every run is still warming up."""
LEAST_SAMPLES = 48
LEAVE_OUT_SHARE = 4
"""The beginning that never counts: one in so many of all samples. Caches and workers fill then."""
QUARTERS = 4
LEAST_GROWTH = 0.02
"""A fraction of the memory, from the first to the last quarter, that is worth a word."""
STEADY = 0.5
"""Each quarter adds this part at least of the mean addition: what levels off does not grow on."""


@dataclass(frozen=True)
class _Series:
    """Memory in use of one owner over time. `name`: "host" or the GPU's; `limit` in bytes."""

    name: str
    times: Sequence[float]
    values: Sequence[float]
    limit: int | None


def memory_growth(samples: Samples) -> MemoryGrowth | None:
    """Of the host's process tree and each GPU the memory that is full first; None if none grows."""
    found = [growth for one in _series(samples) if (growth := _growth(one)) is not None]
    endless = float("inf")
    return min(found, key=lambda g: g.seconds_left or endless, default=None)


def growth_note(growth: MemoryGrowth) -> str:
    """One line about it."""
    whose = "host memory" if growth.device is None else f"memory of {growth.device}"
    rate = f"{byte_size(growth.bytes_per_second * 3600)} an hour"
    note = (
        f"{whose} grows: {byte_size(growth.first_bytes)} early in the run, "
        f"{byte_size(growth.last_bytes)} at its end "
        f"(+{percent(growth.last_bytes / growth.first_bytes - 1)}, {rate})"
    )
    if growth.seconds_left is None:
        return note
    return f"{note}; at this rate it is full after {duration(growth.seconds_left)} more"


def quarters(values: Sequence[float]) -> list[float]:
    """The median of each quarter of values in the order of time."""
    length = len(values) // QUARTERS
    return [median(values[n * length : (n + 1) * length]) for n in range(QUARTERS)]


def grows_steadily(levels: Sequence[float], least: float = 0.0) -> bool:
    """True if memory at these times grows on: each adds its part, all together more than `least` of
    the first."""
    added = levels[-1] - levels[0]
    steps = [after - before for before, after in pairwise(levels)]
    enough = levels[0] > 0 and added > 0 and added >= least * levels[0]
    return enough and min(steps) >= STEADY * added / len(steps)


def _series(samples: Samples) -> list[_Series]:
    host = samples.host
    found = [
        _Series(
            "",
            [sample.unix_time_ns / 1e9 for sample in host],
            [float(sample.rss_bytes) for sample in host],
            available_memory(),
        )
    ]
    for uuid in dict.fromkeys(sample.uuid for sample in samples.device):
        own = [x for x in samples.device if x.uuid == uuid and x.memory_used_bytes is not None]
        if own and not any(sample.foreign_processes for sample in own):
            index = own[0].cuda_index
            name = own[0].name if index is None else f"GPU {index}"
            used = [float(sample.memory_used_bytes or 0) for sample in own]
            times = [sample.unix_time_ns / 1e9 for sample in own]
            found.append(_Series(name, times, used, own[0].memory_total_bytes))
    return found


def _growth(series: _Series) -> MemoryGrowth | None:
    start = len(series.values) // LEAVE_OUT_SHARE
    times, values = series.times[start:], series.values[start:]
    if len(values) < LEAST_SAMPLES or times[-1] - times[0] < LEAST_SECONDS:
        return None
    levels, middles = quarters(values), quarters(times)
    if not grows_steadily(levels, LEAST_GROWTH):
        return None
    rate = (levels[-1] - levels[0]) / (middles[-1] - middles[0])
    room = None if series.limit is None else max(series.limit - max(values), 0.0)
    return MemoryGrowth(
        device=series.name or None,
        first_bytes=round(levels[0]),
        last_bytes=round(levels[-1]),
        bytes_per_second=rate,
        seconds_left=None if room is None else room / rate,
    )
