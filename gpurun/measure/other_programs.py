"""CPU time that programs other than ours take from the cores that ours may use."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from gpurun.measure.machine import available_cores
from gpurun.records.result import HostUse

STAT = Path("/proc/stat")
BUSY = (0, 1, 2, 5, 6)
"""Columns of a core's line: user, nice, system and both kinds of interrupts. Time that other
virtual machines steal belongs to no process here."""

MOST_OF_CORES = 0.6
"""Others that take this part of our cores have most of them."""
CROWDED = "other programs left no core free: live pairs count as less exact"
FULL = 0.9
"""Cores that are busy for this part of the time leave hardly any to whoever needs one more."""


def shared_cores() -> int:
    """The number of cores on which others may take time: those of our affinity mask."""
    return len(os.sched_getaffinity(0))


def busy_seconds() -> float | None:
    """CPU seconds of anyone on our cores since boot.

    None if the system does not count, or if a quota grants less than the usable cores: then work of
    others costs us nothing.
    """
    if available_cores() < shared_cores():
        return None
    try:
        return busy_seconds_in(STAT.read_text(), os.sched_getaffinity(0)) or None
    except (OSError, ValueError, IndexError):
        return None


def leaves_no_core(launches: Sequence[HostUse | None]) -> bool:
    """True if others had most of our cores, and hardly any was idle, while these launches ran side
    by side. Which of them gets a core is then a matter of luck."""
    uses = [use for use in launches if use is not None]
    others = [use.others_cpu_percent for use in uses if use.others_cpu_percent is not None]
    if not others:
        return False
    foreign = min(others) / 100
    own = sum(use.cpu_percent or 0.0 for use in uses) / 100
    cores = shared_cores()
    return foreign > MOST_OF_CORES * cores and foreign + own > FULL * cores


def busy_seconds_in(stat: str, cores: Collection[int]) -> float:
    """The same by the text of `/proc/stat`."""
    ticks = 0
    for line in stat.splitlines():
        name, *columns = line.split() or [""]
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            ticks += sum(int(columns[i]) for i in BUSY)
    return ticks / os.sysconf("SC_CLK_TCK")
