"""The runs below a folder of records whose launcher is still alive."""

from __future__ import annotations

import os
from pathlib import Path

from gpurun.rundir import read_json

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
STARTED_AFTER_SECONDS = 2.0
"""A process that began so much later than the spec was written has inherited its number."""


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
        spec = folder / "spec.json"
        pid = int(read_json(spec)["launcher_pid"])
        return started(pid) <= spec.stat().st_mtime + STARTED_AFTER_SECONDS
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return False  # no run, a torn spec, or no such process


def started(pid: int) -> float:
    """When a process began, in seconds since 1970; `OSError` if it is gone."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    boot = next(
        int(line.split()[1])
        for line in Path("/proc/stat").read_text().splitlines()
        if line.startswith("btime ")
    )
    return boot + ticks / CLOCK_TICKS


def command_of(pid: int) -> str | None:
    """The command line of a process; None if it is gone, hidden or of the kernel."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    return " ".join(word.decode(errors="replace") for word in words).strip() or None
