"""What the kernel alone knows of processes: when one began, and how many it killed for memory.

Launching a script imports this, so it imports hardly anything.
"""

from __future__ import annotations

from pathlib import Path

from gpurun.rundir import read_json

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


def start_ticks(pid: int) -> int | None:
    """When a process began, in clock ticks since the boot; None if it is gone.

    The kernel's table also has its boot time by the wall clock, which moves when that is set.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
