"""Processes of the next trials, started while this one starts: most of a launch is its start.

All import at the same time, each on a core of its own. While a trial is measured they are stopped,
so that it is measured alone.
"""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from gpurun.errors import GpurunError
from gpurun.isolation.box import Box, BoxSpec
from gpurun.knobs.api import Skip
from gpurun.measure.events import ProcessLog
from gpurun.measure.machine import available_cores, available_memory
from gpurun.options import Options, TargetKind

LEAST_CORES = 2
CORES_EACH = 4
"""A further process for so many cores: the trial that starts beside them needs some itself."""
MOST = 3
MEMORY_EACH = 4 << 30
"""Bytes: a process that has imported much takes a fourth of it."""


def places() -> int:
    """How many processes may wait on this machine at a time."""
    by_cores = max(1, int(available_cores() / CORES_EACH))
    return min(MOST, by_cores, max(1, available_memory() // MEMORY_EACH))


def several() -> bool:
    """Whether more than one may wait: one alone would disturb the trial beside it, or be late."""
    return places() > 1


class Standby:
    """Processes that wait for their orders, each in the run folder of a trial to come."""

    def __init__(self) -> None:
        self._waiting: dict[Path, Box] = {}

    @property
    def pids(self) -> tuple[int, ...]:
        """The waiting processes, as the launcher sees them."""
        return tuple(box.pid for box in self._waiting.values())

    def fits(self, order: BoxSpec, run_dir: Path) -> bool:
        """Whether a process waits there for an order like this."""
        box = self._waiting.get(run_dir)
        return box is not None and box.spec == order and box.poll() is None

    def start(self, order: BoxSpec, run_dir: Path) -> None:
        """Start a process for an order like this; its spec, in `run_dir`, tells it to wait."""
        with suppress(GpurunError):  # the launch that follows says so
            self._waiting[run_dir] = Box(order)

    def take(self, order: BoxSpec, run_dir: Path) -> Box | None:
        """The process that waits there, if it was started for such an order; else it is ended."""
        if self.fits(order, run_dir):
            return self._waiting.pop(run_dir)
        self.drop(run_dir)
        return None

    def drop(self, run_dir: Path) -> None:
        """End the process that waits there, if one does, and remove what it wrote."""
        box = self._waiting.pop(run_dir, None)
        if box is not None:
            box.close()
            shutil.rmtree(run_dir, ignore_errors=True)

    def stop(self) -> None:
        """Let none of them use the processor."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let them import further."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End all, and remove what they wrote."""
        for run_dir in list(self._waiting):
            self.drop(run_dir)

    def _signal(self, number: int) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


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
    imports = probe.imports
    if imports is None or imports.changed_variables:
        return ("torch",)
    return ("torch", *imports.modules)
