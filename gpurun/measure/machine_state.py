"""One look at a machine: its processor and memory, its GPUs, and the trainings under gpurun."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from gpurun.measure.followed_run import FollowedRun, gpu_state
from gpurun.measure.kernel_facts import start_ticks
from gpurun.measure.machine import STAT, busy_seconds_in, shared_cores
from gpurun.measure.nvml import DeviceSampler
from gpurun.records.monitor import GpuProcess, GpuState, HostState, MonitorReport
from gpurun.records.script_arguments import masked
from gpurun.rundir import read_json


class MachineState:
    """Looks again and again. Use of processor and GPU is that since the look before."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._gpus = DeviceSampler()
        self._runs: dict[Path, FollowedRun] = {}
        self._busy = _busy_now()

    def look(self) -> MonitorReport:
        """The state now."""
        running = running_runs(self._home)
        self._runs = {path: self._runs.get(path) or FollowedRun(path) for path in running}
        for run in self._runs.values():
            run.read()
        trainings = [run.training() for run in self._runs.values()]
        return MonitorReport(
            verdict="ok",
            host=self._host(),
            gpus=self._gpu_states(),
            trainings=tuple(training for training in trainings if training.ranks),
        )

    def close(self) -> None:
        """Let go of the GPUs."""
        self._gpus.close()

    def _gpu_states(self) -> tuple[GpuState, ...]:
        processes = self._gpus.processes()
        return tuple(
            replace(gpu_state(sample, place), processes=_named(processes.get(sample.uuid)))
            for place, sample in enumerate(self._gpus.sample(set()))
        )

    def _host(self) -> HostState | None:
        before, self._busy = self._busy, _busy_now()
        try:
            total, free = _memory(Path("/proc/meminfo").read_text())
        except (OSError, ValueError, KeyError, IndexError):
            return None
        percent = None
        if before is not None and self._busy is not None and self._busy[0] > before[0]:
            used = (self._busy[1] - before[1]) / (self._busy[0] - before[0])
            percent = min(100.0, used / shared_cores() * 100)
        return HostState(shared_cores(), percent, total - free, total)


def _named(processes: list[tuple[int, int | None]] | None) -> tuple[GpuProcess, ...] | None:
    if processes is None:
        return None
    return tuple(GpuProcess(pid, command_of(pid), used) for pid, used in processes)


def _busy_now() -> tuple[float, float] | None:
    """The time and the seconds that our cores have been busy since boot; None if not counted."""
    try:
        return time.monotonic(), busy_seconds_in(STAT.read_text(), os.sched_getaffinity(0))
    except (OSError, ValueError, IndexError):
        return None


def _memory(meminfo: str) -> tuple[int, int]:
    """Bytes of memory in all, and those that programs can still get."""
    table = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    total, free = (int(table[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return total, free


def running_runs(home: Path) -> list[Path]:
    """Folders of unfinished runs with a live launcher, in the order of their start."""
    try:
        folders = [Path(entry.path) for entry in os.scandir(home / "runs")]
    except OSError:
        return []
    return sorted(folder for folder in folders if _runs(folder))


def _runs(folder: Path) -> bool:
    if (folder / "result.json").exists():
        return False
    try:
        spec = read_json(folder / "spec.json")
        ticks = start_ticks(int(spec["launcher_pid"]))
        return ticks is not None and ticks == spec["launcher_started"]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return False  # no run, or a torn spec


def command_of(pid: int) -> str | None:
    """The command line of a process without secrets; None if it is gone, hidden or the kernel's."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    shown = masked([word.decode(errors="replace") for word in words])
    return " ".join(shown).strip() or None
