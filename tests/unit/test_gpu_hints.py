"""Hints of the monitor: each from the GPU's activity and memory alone."""

from __future__ import annotations

import pytest

from gpurun.records.monitor import GpuProcess, GpuState
from gpurun.report.live.monitor_table import hints

GIB = 1024**3


def gpu(activity: float | None, memory: float | None, processes: int | None = 1) -> GpuState:
    running = None if processes is None else (GpuProcess(1, "python", None),) * processes
    used = None if memory is None else int(memory * 80 * GIB)
    return GpuState(3, "u", "H200", activity, "nvml", used, 80 * GIB, None, None, running)


@pytest.mark.parametrize(
    ("activity", "memory", "told"),
    [
        (20, 0.2, "room for a larger batch"),
        (20, 0.8, "waits for data"),
        (95, 0.2, "larger batch would fit"),
        (20, 0.97, "out of memory"),
        (95, 0.97, "out of memory"),
        (None, 0.97, "out of memory"),
    ],
)
def test_a_hint_fits_its_figures(activity: float, memory: float, told: str) -> None:
    (hint,) = hints((gpu(activity, memory),))
    assert hint.startswith("GPU 3")
    assert told in hint


@pytest.mark.parametrize(
    "state",
    [
        gpu(95, 0.8),
        gpu(70, 0.3),
        gpu(0, 0.01, processes=0),
        gpu(0, 0.01, processes=None),
        gpu(None, 0.3),
        gpu(20, None),
    ],
)
def test_a_busy_an_idle_and_an_unmeasured_gpu_have_none(state: GpuState) -> None:
    assert hints((state,)) == ()
