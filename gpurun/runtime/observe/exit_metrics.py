"""The memory and processor time of a process, written when it ends."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable

from gpurun.records.events import EndEvent
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe import loaded_modules
from gpurun.runtime.observe.save_times import SAVES
from gpurun.runtime.observe.step_clock import CLOCK

BEFORE_END: list[Callable[[], None]] = []
"""Writers of further events of this process, called before its metrics are written."""
_ENDED: set[int] = set()
"""Processes (this one, or the one it was forked from) whose metrics are written."""


def write_exit_metrics(patience_s: float | None = None) -> None:
    """Write what is pending and, once, the metrics of this process.

    `patience_s`: the longest wait for a device; None: as long as it takes.
    """
    CLOCK.drain(patience_s)
    if not RECORDER.recording or os.getpid() in _ENDED:
        return
    _ENDED.add(os.getpid())
    loaded_modules.write_all()
    for write in BEFORE_END:
        write()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    RECORDER.event(
        EndEvent(
            clock_ns=time.perf_counter_ns(),
            peak_rss_bytes=usage.ru_maxrss * 1024,
            **_device_memory(),
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            saves=SAVES.saves,
            save_seconds=SAVES.elapsed_ns / 1e9,
        )
    )


def _device_memory() -> dict[str, int | None]:
    import torch

    cuda = torch.cuda
    known = cuda.is_initialized()
    return {
        "peak_allocated_bytes": cuda.max_memory_allocated() if known else None,
        "peak_reserved_bytes": cuda.max_memory_reserved() if known else None,
        "allocator_retries": cuda.memory_stats().get("num_alloc_retries") if known else None,
    }
