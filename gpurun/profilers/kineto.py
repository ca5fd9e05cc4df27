"""torch.profiler (Kineto)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from gpurun.measure.run_events import ProcessLog
from gpurun.profilers.api import Profiler
from gpurun.timeline import from_kineto
from gpurun.timeline.model import Timeline


class Kineto(Profiler):
    """Kernels, copies, calls of CUDA and collectives on a GPU; operators on the CPU.

    On a GPU only the device is recorded: recording the operators of the host too doubles what the
    profiler costs.
    """

    name: ClassVar[str] = "kineto"
    title: ClassVar[str] = "torch.profiler (Kineto)"
    default: ClassVar[bool] = True
    inside: ClassVar[bool] = True
    order: ClassVar[int] = 20

    def timeline(self, log: ProcessLog, folder: Path) -> Timeline | None:
        """The trace that the process wrote at the end of its window."""
        trace = folder / f"kineto-{log.process.pid}.json"
        offset = log.process.unix_time_ns - log.process.clock_ns
        return from_kineto.read(trace, offset) if trace.exists() else None
