"""The next trial's process, started while this one starts: most of a launch is its start.

Both import at the same time, each on a core of its own. A trial is held at its first step until
the process beside it is ready, and so is measured alone.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from gpurun.errors import GpurunError
from gpurun.isolation.box import Box, BoxSpec
from gpurun.knobs.api import Skip
from gpurun.measure.events import ProcessLog
from gpurun.measure.machine import available_cores
from gpurun.options import Options, TargetKind
from gpurun.records.spec import READY

CONTROL = "control"
LEAST_CORES = 2
READY_SECONDS = 60.0
"""A process that is not ready by then never will be."""


class Standby:
    """At most one process that waits for its order. `pid` is None where there is none."""

    def __init__(self) -> None:
        self._box: Box | None = None
        self._run_dir = Path()
        self._began = 0.0

    @property
    def pid(self) -> int | None:
        """The waiting process, as the launcher sees it."""
        return None if self._box is None else self._box.pid

    def start(self, order: BoxSpec, run_dir: Path) -> None:
        """Start a process for an order like this; its spec, in `run_dir`, tells it to wait."""
        self.close()
        self._run_dir, self._began = run_dir, time.monotonic()
        try:
            self._box = Box(order)
        except GpurunError:
            self._box = None  # the launch that follows says so

    def starting(self) -> bool:
        """Whether the process is still busy with its imports."""
        if self._box is None or (self._run_dir / CONTROL / READY).exists():
            return False
        if self._box.poll() is None and time.monotonic() - self._began < READY_SECONDS:
            return True
        self.close()
        return False

    def take(self, order: BoxSpec) -> Box | None:
        """The process if it was started for such an order and is ready; else it is ended."""
        box, self._box = self._box, None
        if box is None:
            return None
        ready = (self._run_dir / CONTROL / READY).exists() and box.poll() is None
        if ready and box.spec == order:
            return box
        box.close()
        shutil.rmtree(self._run_dir, ignore_errors=True)
        return None

    def close(self) -> None:
        """End the process, if there is one, and remove what it wrote."""
        if self._box is not None:
            self._box.close()
            self._box = None
            shutil.rmtree(self._run_dir, ignore_errors=True)


def what_to_import(options: Options, probe: ProcessLog) -> tuple[str, ...] | Skip:
    """What every trial of this script imports first, or why no process may do so early."""
    if options.elastic or options.target.kind is TargetKind.COMMAND:
        return Skip("its processes are started by another program")
    if probe.torch is None:
        return Skip("it imports no torch")
    if probe.torch.changed_variables:
        names = ", ".join(probe.torch.changed_variables)
        return Skip(f"the script sets {names} before it imports torch")
    if available_cores() < LEAST_CORES:
        return Skip("a process beside a trial needs a core of its own")
    return ("torch",)
