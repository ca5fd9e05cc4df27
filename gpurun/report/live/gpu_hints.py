"""Plain hints from the use of a GPU and its memory at one moment."""

from __future__ import annotations

from gpurun.formatting.number_text import percent
from gpurun.records.monitor import GpuState

LITTLE_ACTIVITY = 50.0
"""Percent: below it the GPU mostly waits."""
MUCH_ACTIVITY = 80.0
LITTLE_MEMORY = 0.5
MEMORY_PRESSURE = 0.95


def hints(gpus: tuple[GpuState, ...]) -> tuple[str, ...]:
    """At most one hint for each GPU that is in use."""
    return tuple(hint for gpu in gpus if (hint := _hint(gpu)))


def _hint(gpu: GpuState) -> str | None:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    activity = gpu.gpu_utilization_percent
    if used is None or not total or not _in_use(gpu):
        return None
    share = used / total
    name = f"GPU {gpu.gpu_id}"
    memory = f"{percent(share)} of its memory is in use"
    if share >= MEMORY_PRESSURE:
        return f"{name}: {memory}. A little more may end the run out of memory."
    if activity is None:
        return None
    busy = f"{name} is {activity:.0f} % busy, and {memory}"
    if activity < LITTLE_ACTIVITY and share < LITTLE_MEMORY:
        return f"{busy}. There is room for a larger batch: gpurun --optimize measures its gain."
    if activity < LITTLE_ACTIVITY:
        return f"{busy}. It waits for data or for the processor: gpurun profile finds the cause."
    if activity >= MUCH_ACTIVITY and share < LITTLE_MEMORY:
        return f"{busy}. A larger batch would fit, and may be faster."
    return None


def _in_use(gpu: GpuState) -> bool:
    """True if somebody computes on it, as far as it tells."""
    return bool(gpu.processes) or bool(gpu.gpu_utilization_percent)
