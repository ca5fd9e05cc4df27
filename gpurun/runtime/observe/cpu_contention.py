"""Measures how long other processes had the cores while the training was ready to run.

Programs on this machine make a thread wait in the scheduler's queue (`schedstat` of the thread);
other virtual machines take the core itself away (steal time in `/proc/stat`). Read twice only,
where the measured steps of a trial begin and end.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from gpurun.records.events import CoresEvent

TASKS = Path("/proc/self/task")
STAT = Path("/proc/stat")
STEAL = 7
"""Column of a core's line."""
BUSY = 0.2
"""Threads that ran less than this share of the busiest one's time are left out."""


@dataclass(frozen=True)
class CpuReading:
    """The counts at one moment. `threads`: nanoseconds run and waited, by thread."""

    clock_ns: int
    threads: dict[str, tuple[int, int]]
    stolen_ns: int | None


def read_cpu_counts() -> CpuReading:
    """The counts now; what the system does not count is missing."""
    threads = {}
    for task in _listed(TASKS):
        try:
            ran, waited, _ = (task / "schedstat").read_text().split()
            threads[task.name] = int(ran), int(waited)
        except (OSError, ValueError):
            continue  # the thread has ended, or this kernel does not count
    return CpuReading(time.perf_counter_ns(), threads, _stolen())


def contention_between(begin: CpuReading, end: CpuReading) -> CoresEvent:
    """The core time that others had between two readings. The thread that waited most counts,
    since the others wait for it."""
    spent = {
        name: (ran - begin.threads[name][0], waited - begin.threads[name][1])
        for name, (ran, waited) in end.threads.items()
        if name in begin.threads
    }
    busiest = max((ran for ran, _ in spent.values()), default=0)
    busy = [(waited, ran) for ran, waited in spent.values() if ran >= BUSY * busiest > 0]
    waited, ran = max(busy, default=(None, None))
    stolen = None
    if begin.stolen_ns is not None and end.stolen_ns is not None:
        stolen = end.stolen_ns - begin.stolen_ns
    return CoresEvent(
        begin_ns=begin.clock_ns,
        end_ns=end.clock_ns,
        waited_ns=waited,
        stolen_ns=stolen,
        ran_ns=ran,
    )


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _stolen() -> int | None:
    """Nanoseconds that other virtual machines had the cores which this process may use."""
    try:
        lines = STAT.read_text().splitlines()
        mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        ticks = [int(line.split()[1 + STEAL]) for line in lines if line.split(" ")[0] in mine]
    except (OSError, ValueError, IndexError):
        return None
    return round(sum(ticks) * 1e9 / os.sysconf("SC_CLK_TCK")) if ticks else None
