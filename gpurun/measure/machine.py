"""The hardware that a process may use here: cores and memory within its limits, and the GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gpurun.records.facts import Machine
from gpurun.rundir import read_json


def start_ticks(pid: int) -> int | None:
    """When a process began, in clock ticks since the boot; None if it is gone.

    The kernel's table also has its boot time by the wall clock, which moves when that is set.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


VMSTAT = Path("/proc/vmstat")
COUNTER = "oom_kill "


def kernel_oom_kills(vmstat: Path = VMSTAT) -> int | None:
    """Processes that were killed for memory since the host started; None where nobody counts.

    `/proc/vmstat` counts those of the whole host, also inside a container.
    """
    try:
        lines = vmstat.read_text(encoding="ascii").splitlines()
        return next((int(x.removeprefix(COUNTER)) for x in lines if x.startswith(COUNTER)), None)
    except (OSError, ValueError):
        return None


def killed_for_memory(run_dir: Path, vmstat: Path = VMSTAT) -> bool | None:
    """True if any was, since the launch of that folder was prepared; None where nobody counts."""
    try:
        before = read_json(run_dir / "spec.json")["kernel_oom_kills"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    now = kernel_oom_kills(vmstat)
    return None if before is None or now is None else now > before


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
