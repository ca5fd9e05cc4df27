"""Tells a process from a later one of the same number."""

from __future__ import annotations

from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """When a process began, in clock ticks since the boot; None if it is gone.

    The kernel's table also has its boot time by the wall clock, which moves when that is set.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
