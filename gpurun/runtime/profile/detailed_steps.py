"""Some steps behind the window, on a GPU: operators with their shapes, and each allocation.

Recording them would make the steps of the window twice as long.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from gpurun.records.spec import OPERATOR_STEPS
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.profile.allocations import memory_trace
from gpurun.runtime.profile.phase_ranges import PHASES
from gpurun.runtime.profile.profiler_recordings import KinetoRecording

MOST_ENTRIES = 200_000
"""Of the allocator's record: more would fill the host's memory."""

now = time.perf_counter_ns


class DetailedSteps:
    """Records `OPERATOR_STEPS` steps, once."""

    def __init__(self, torch: Any, folder: Path) -> None:
        self._torch, self._left, self._held = torch, 0, 0
        self._device: int | None = None
        self._trace = folder / f"operators-{os.getpid()}.json"
        self._kineto = KinetoRecording(torch, self._trace, lambda _: self.abandon(), detailed=True)

    @property
    def recording(self) -> bool:
        """Further steps belong to it."""
        return self._left > 0

    def begin(self) -> None:
        """Start to record; nothing where the operators are in the window, as on the CPU."""
        if self._torch.cuda.is_initialized():
            self._left, PHASES.recording = OPERATOR_STEPS, True
            guarded("allocations", self._record_allocations)()
            self._kineto.begin()

    def after_step(self) -> bool:
        """A step is over; True if it was the last one."""
        PHASES.step_ended()
        self._left -= 1
        if self._left:
            return False
        PHASES.recording = False
        self._kineto.finish()
        guarded("allocations", self._write_allocations)(PHASES.take())
        return True

    def abandon(self) -> None:
        """The script ends inside of it: sums of fewer steps would be told as those of all."""
        if self.recording:
            self._left, PHASES.recording = 0, False
            self._kineto.finish()
            self._trace.unlink(missing_ok=True)
            guarded("allocations", self._stop_recording)()

    def forked(self) -> None:
        """In a child: it stays the parent's."""
        self._left = 0
        self._kineto.forked()

    def _record_allocations(self) -> None:
        """Unless the script does so itself."""
        if not self._torch._C._cuda_isHistoryEnabled():
            memory, self._device = self._torch.cuda.memory, self._torch.cuda.current_device()
            self._held = self._torch.cuda.memory_allocated()
            memory._record_memory_history(
                context="alloc", stacks="python", max_entries=MOST_ENTRIES
            )

    def _stop_recording(self) -> None:
        if self._device is not None:
            self._torch.cuda.memory._record_memory_history(enabled=None)

    def _write_allocations(self, phases: tuple[tuple[str, int, int], ...]) -> None:
        if self._device is None:
            return
        entries = self._torch.cuda.memory._snapshot()["device_traces"][self._device]
        self._stop_recording()
        ahead = time.time_ns() - now()
        parts = [(n, (b + ahead) // 1000, (e + ahead) // 1000) for n, b, e in phases]
        if entries and len(entries) < MOST_ENTRIES:
            RECORDER.event(memory_trace(self._device, entries, self._held, parts, OPERATOR_STEPS))
