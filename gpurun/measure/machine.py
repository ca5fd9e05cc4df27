"""The hardware that a process may use here: cores and memory within its limits, and the GPUs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from gpurun.measure.optional_figures import known
from gpurun.records.facts import Machine
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


CGROUPS = Path("/sys/fs/cgroup")
FREQUENCIES = Path("/sys/devices/system/cpu/cpu0/cpufreq")
SLOW_GOVERNORS = ("powersave", "conservative")
DYNAMIC_DRIVERS = ("intel_pstate", "amd-pstate-epp")
"""With these the governor "powersave" raises clocks as others do."""
NO_LIMIT_BYTES = 1 << 60
"""cgroup v1 writes an absurd number where there is no limit."""


def machine() -> Machine:
    """Look at the machine. Without NVML there are no GPUs, as far as is known."""
    from gpurun.measure.nvml import gpu_hardware

    gpus = gpu_hardware()
    capabilities = [g.compute_capability for g in gpus if g.compute_capability is not None]
    memories = [g.memory_bytes for g in gpus if g.memory_bytes is not None]
    return Machine(
        cores=available_cores(),
        memory_bytes=available_memory(),
        gpus=tuple(g.name for g in gpus),
        gpu_memory_bytes=min(memories, default=None),
        compute_capability=min(capabilities, default=None),
    )


def available_cores(root: Path = CGROUPS) -> float:
    """Cores that this process may keep busy: of its affinity mask, within the cgroup's quota."""
    cores = float(len(os.sched_getaffinity(0)))
    for folder in _groups(root, "cpu"):
        quota = _quota(folder)
        if quota is not None:
            cores = min(cores, quota)
    return cores


def available_memory(root: Path = CGROUPS) -> int:
    """Bytes of memory that this process may use: the machine's, within the cgroup's limit."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(_text(folder / name))
            if limit is not None and limit < NO_LIMIT_BYTES:
                memory = min(memory, limit)
    return memory


def slow_governor(frequencies: Path = FREQUENCIES) -> str | None:
    """The kernel's governor if it holds the clocks of the cores down; None of any other."""
    governor, driver = (_text(frequencies / f"scaling_{name}") for name in ("governor", "driver"))
    slow = governor.strip() in SLOW_GOVERNORS and driver.strip() not in DYNAMIC_DRIVERS
    return governor.strip() if slow else None


def _quota(folder: Path) -> float | None:
    """Cores granted by one cgroup folder of either version; None without a limit."""
    both = _text(folder / "cpu.max").split()
    if len(both) == 2:
        quota, period = _number(both[0]), _number(both[1])
    else:
        quota = _number(_text(folder / "cpu.cfs_quota_us"))
        period = _number(_text(folder / "cpu.cfs_period_us"))
    return quota / period if quota and period and quota > 0 else None


def _groups(root: Path, controller: str, own: Path = Path("/proc/self/cgroup")) -> Iterator[Path]:
    """The cgroup folders of this process for a controller, each with its ancestors, v1 and v2.

    In a container the path may name folders of the host that are not mounted: the root then stands
    for the container's own group.
    """
    seen: set[Path] = set()
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tops = [root / controllers, root / controller] if controllers else [root]
        for top in tops:
            folder = top / path.lstrip("/")
            while folder != top.parent and folder not in seen:
                seen.add(folder)
                yield folder
                folder = folder.parent


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
