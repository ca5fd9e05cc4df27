"""Starts the processes of the next launches early, since most of a launch is its start-up.

All import at the same time, each on a core of its own. While a launch is measured they are stopped,
so that it is measured alone.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from gpurun.arguments.options import Target, TargetKind
from gpurun.errors import GpurunError
from gpurun.isolation.folder_removal import discard
from gpurun.isolation.sandbox import LaunchSpec, Sandbox
from gpurun.knobs.api import Skip
from gpurun.launch.launch_command import write_spec
from gpurun.measure.machine import available_cores, available_memory
from gpurun.measure.run_events import ProcessLog
from gpurun.records.spec import RunSpec

LEAST_CORES = 2
CORES_EACH = 4
"""A further process for so many cores: the launch that starts beside them needs some itself."""
MOST = 3
MEMORY_EACH = 4 << 30
"""Bytes: a process that has imported much takes a fourth of it."""


def prestart_slots() -> int:
    """The number of processes that may wait on this machine at a time."""
    by_cores = max(1, int(available_cores() / CORES_EACH))
    return min(MOST, by_cores, max(1, available_memory() // MEMORY_EACH))


def has_several_slots() -> bool:
    """True if more than one may wait: one alone would disturb the launch beside it, or be late."""
    return prestart_slots() > 1


class Prestarted:
    """Processes that wait for their specs, each in the run folder of a launch to come.

    `modules`: what they import; none are started while there is nothing to import.
    """

    def __init__(self) -> None:
        self.modules: tuple[str, ...] = ()
        self._waiting: dict[Path, Sandbox] = {}

    @property
    def pids(self) -> tuple[int, ...]:
        """The waiting processes, as the launcher sees them."""
        return tuple(sandbox.pid for sandbox in self._waiting.values())

    def start(self, spec: LaunchSpec, run_dir: Path) -> None:
        """Have a process wait for a launch like this, unless one does."""
        if self._fits(spec, run_dir):
            return
        self.drop(run_dir)
        discard(run_dir)  # of a launch that could not be started
        (run_dir / "control").mkdir(parents=True)
        write_spec(RunSpec(str(run_dir), os.getpid(), prestart_modules=self.modules))
        with suppress(GpurunError):  # the launch that follows says so
            self._waiting[run_dir] = Sandbox(spec)

    def take(self, spec: LaunchSpec, run_dir: Path) -> Sandbox | None:
        """The process that waits there, if it was started for such a launch; else it is ended."""
        if self._fits(spec, run_dir):
            return self._waiting.pop(run_dir)
        self.drop(run_dir)
        return None

    def drop(self, run_dir: Path) -> None:
        """End the process that waits there, if one does, and remove what it wrote."""
        sandbox = self._waiting.pop(run_dir, None)
        if sandbox is not None:
            sandbox.close()
            discard(run_dir)

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

    def _fits(self, spec: LaunchSpec, run_dir: Path) -> bool:
        sandbox = self._waiting.get(run_dir)
        return sandbox is not None and sandbox.spec == spec and sandbox.poll() is None

    def _signal(self, number: int) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def what_to_import(target: Target, log: ProcessLog, *, ranks: bool) -> tuple[str, ...] | Skip:
    """The modules that every launch of a script imports first, or why none may do so early.

    `log`: of its first launch. `ranks`: it runs on torch's elastic agent.
    """
    if ranks or target.kind is TargetKind.COMMAND:
        return Skip("its processes are started by another program")
    if log.torch is None:
        return Skip("it imports no torch")
    if log.torch.changed_variables:
        names = ", ".join(log.torch.changed_variables)
        return Skip(f"the script sets {names} before it imports torch")
    if available_cores() < LEAST_CORES:
        return Skip("a process beside a trial needs a core of its own")
    imports = log.imports
    if imports is None or imports.changed_variables:
        return ("torch",)
    return ("torch", *imports.modules)
