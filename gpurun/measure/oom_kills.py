"""Tells whether the kernel killed processes for lack of memory while a launch ran.

`/proc/vmstat` counts kills of the whole host, also inside a container. An unchanged number proves
that there was none; a larger one makes it likely.
"""

from __future__ import annotations

from pathlib import Path

from gpurun.rundir import read_json

VMSTAT = Path("/proc/vmstat")
COUNTER = "oom_kill "


def kernel_oom_kills(vmstat: Path = VMSTAT) -> int | None:
    """Processes that were killed for memory since the host started; None where nobody counts."""
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
