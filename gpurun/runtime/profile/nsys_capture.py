"""This process's own part of a Nsight Systems recording: the capture, marks, and NVTX ranges."""

from __future__ import annotations

import os
import time
from typing import Any

from gpurun.records.messages.profile_events import CLOCK_MARK, ProfilerState
from gpurun.runtime.profile.kineto_trace import MARKS

INJECTED = "NVTX_INJECTION64_PATH"
"""A tool that takes NVTX ranges names its library in this variable of the processes it watches."""

now = time.perf_counter_ns


class NsysCapture:
    """Tells the Nsight Systems around this process where the window begins and ends.

    It hands on ranges and marks by `torch.cuda.nvtx`, which only builds for CUDA have.
    """

    name = "nsys"

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._nvtx = torch.cuda.nvtx
        self._attached = bool(os.environ.get(INJECTED)) and torch.version.cuda is not None
        self._seconds = 0.0

    def begin_capture(self) -> None:
        """Begin the capture and tie its clock to this process's."""
        began = now()
        if self._cuda.is_initialized():
            self._cuda.profiler.start()
        for _ in range(MARKS if self._attached else 0):
            self._nvtx.mark(f"{CLOCK_MARK}{now()}")
        self._seconds += (now() - began) / 1e9

    def finish_capture(self) -> ProfilerState:
        """End the capture."""
        began = now()
        if self._cuda.is_initialized():
            self._cuda.profiler.stop()
        self._seconds += (now() - began) / 1e9
        failure = None if self._attached else "Nsight Systems does not watch this process"
        return ProfilerState(self.name, failure, self._seconds)

    def push(self, name: str) -> None:
        """Open a range inside the one that is open."""
        if self._attached:
            self._nvtx.range_push(name)

    def pop(self) -> None:
        """Close the range opened last."""
        if self._attached:
            self._nvtx.range_pop()

    def begin(self, name: str) -> Any:
        """Open a range that may overlap others; what `end` takes."""
        return self._nvtx.range_start(name) if self._attached else None

    def end(self, token: Any) -> None:
        """Close the range that `begin` opened."""
        if self._attached and token is not None:
            self._nvtx.range_end(token)
