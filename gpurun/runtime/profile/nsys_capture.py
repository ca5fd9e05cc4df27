"""The process's own part of a Nsight Systems recording: the range of capture, marks, and NVTX
ranges."""

from __future__ import annotations

import time
from typing import Any

from gpurun.records.messages.profile_events import CLOCK_MARK, ProfilerState
from gpurun.runtime.profile.kineto_trace import MARKS
from gpurun.runtime.profile.nvtx import Nvtx

now = time.perf_counter_ns


class NsysCapture:
    """Tells the Nsight Systems around this process where the window begins and ends."""

    name = "nsys"

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._seconds = 0.0
        self.nvtx = Nvtx()

    def begin(self) -> None:
        """Begin the capture and tie its clock to this process's."""
        began = now()
        if self._cuda.is_initialized():
            self._cuda.profiler.start()
        for _ in range(MARKS):
            self.nvtx.mark(f"{CLOCK_MARK}{now()}")
        self._seconds += (now() - began) / 1e9

    def finish(self) -> ProfilerState:
        """End the capture."""
        began = now()
        if self._cuda.is_initialized():
            self._cuda.profiler.stop()
        self._seconds += (now() - began) / 1e9
        failure = None if self.nvtx.attached else "Nsight Systems does not watch this process"
        return ProfilerState(self.name, failure, self._seconds)
