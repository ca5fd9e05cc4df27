"""The closing figures of a process: what its end says of memory and processor time."""

from __future__ import annotations

import os
import resource
import sys
import time
from typing import Any

from gpurun.records.events import EndEvent
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe import origins
from gpurun.runtime.observe.steps import CLOCK

_ENDED: set[int] = set()
"""Processes (this one, or the one it was forked from) whose closing figures are written."""


def end(torch: Any) -> None:
    """Write what is pending and, once, the closing figures of this process."""
    CLOCK.drain()
    if not RECORDER.recording or os.getpid() in _ENDED:
        return
    _ENDED.add(os.getpid())
    origins.tell()
    _tell_planted()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    RECORDER.event(
        EndEvent(
            clock_ns=time.perf_counter_ns(),
            peak_rss_bytes=usage.ru_maxrss * 1024,
            **_device_memory(torch),
            cpu_seconds=usage.ru_utime + usage.ru_stime,
        )
    )


def _tell_planted() -> None:
    """Nearly no process has anything planted in it, nor has imported what would tell."""
    planting = sys.modules.get("gpurun.runtime.trial.planting")
    if planting is not None:
        planting.tell()


def _device_memory(torch: Any) -> dict[str, int | None]:
    cuda = torch.cuda
    known = cuda.is_initialized()
    return {
        "peak_allocated_bytes": cuda.max_memory_allocated() if known else None,
        "peak_reserved_bytes": cuda.max_memory_reserved() if known else None,
        "allocator_retries": cuda.memory_stats().get("num_alloc_retries") if known else None,
    }
