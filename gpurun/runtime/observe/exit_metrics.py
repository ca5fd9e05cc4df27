"""The memory, processor time and saves of a process, written when it ends.

While a script is in `torch.save` it trains nothing: the time is measured.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

from gpurun.records.events import EndEvent
from gpurun.records.frames import transparent
from gpurun.runtime.core.patching import replace
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe import loaded_modules
from gpurun.runtime.observe.step_clock import CLOCK

now = time.perf_counter_ns


class SaveTimes:
    """Counts and times the calls of `torch.save`; a call inside another is a part of it."""

    def __init__(self) -> None:
        self.saves = 0
        self.elapsed_ns = 0
        self._saving: set[int] = set()

    def install(self) -> None:
        """Watch `torch.save`, which pickles as the function of its module."""
        import torch

        if replace(torch.serialization, "save", self._watch):
            torch.save = torch.serialization.save

    def _watch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        saving = self._saving

        @transparent
        def save(*args: object, **kwargs: object) -> Any:
            thread, began = get_ident(), now()
            outermost = thread not in saving
            saving.add(thread)
            try:
                return original(*args, **kwargs)
            finally:
                if outermost:
                    saving.discard(thread)
                    self.saves += 1
                    self.elapsed_ns += now() - began

        return save


SAVES = SaveTimes()
"""The saves of this process."""


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
