"""CPU time that programs other than ours take from the cores that ours may use."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from gpurun.measure.machine import available_cores
from gpurun.measure.optional_figures import known
from gpurun.records.result import RunResult

STAT = Path("/proc/stat")
BUSY = (0, 1, 2, 5, 6)
"""Columns of a core's line: user, nice, system and both kinds of interrupts. Time that other
virtual machines steal belongs to no process here."""

CROWDED = "other programs left too few cores: pairs differ more"
MUCH_OF_CORES = 0.4
"""The part of our cores that others use at least where they crowd launches out."""
LONG_WAITS = 20.0
"""Percent of the time in which a launch could compute that it waits for a core at least then."""


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


def crowd_out(launches: Sequence[RunResult]) -> bool:
    """True if other programs had many of our cores, and one of these launches often waited for one.

    The launches ran side by side. Luck then decides which of them gets a core.
    """
    hosts = [result.host for result in launches if result.host is not None]
    others = known(host.others_cpu_percent for host in hosts)
    waits = known(result.core_wait_percent for result in launches)
    if not others or not waits:
        return False
    return min(others) >= 100 * MUCH_OF_CORES * shared_cores() and max(waits) >= LONG_WAITS


def busy_seconds_in(stat: str, cores: Collection[int]) -> float:
    """The same by the text of `/proc/stat`."""
    ticks = 0
    for line in stat.splitlines():
        name, *columns = line.split() or [""]
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            ticks += sum(int(columns[i]) for i in BUSY)
    return ticks / os.sysconf("SC_CLK_TCK")
