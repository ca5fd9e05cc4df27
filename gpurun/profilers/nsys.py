"""Nsight Systems around the script: kernels, copies, waits and NVTX ranges.

A report holds the whole environment of the script, tokens included. Only its owner may read it, and
the export that gpurun reads is deleted at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from gpurun.errors import GpurunError
from gpurun.measure.run_events import ProcessLog
from gpurun.profilers.api import Profiler
from gpurun.records.messages.profile_events import ProfileEvent
from gpurun.timeline import from_nsys
from gpurun.timeline.model import Timeline
from gpurun.timeline.report_exports import exported

DRIVER = Path("/proc/driver/nvidia/version")
SUFFIX = ".nsys-rep"
_APART = 'exec 3>&1 4>&2 1>>"$0" 2>&1; umask 077; exec "$@"'
"""Nsight Systems writes to its log ($0); the script's own output waits in descriptors 3 and 4."""
_BACK = 'umask "$0"; exec "$@" 1>&3 2>&4 3>&- 4>&-'


class Nsys(Profiler):
    """The device's timeline with NVTX ranges, opened by Nsight Systems itself too.

    The script runs under `nsys profile`. On a GPU it captures the window alone; without one it
    records NVTX ranges. `--sources` asks for it.
    """

    name: ClassVar[str] = "nsys"
    tool: ClassVar[str | None] = "nsys"
    title: ClassVar[str] = "Nsight Systems"
    order: ClassVar[int] = 15

    def command(self, command: Sequence[str], folder: Path) -> tuple[str, ...]:
        """`nsys profile`, which keeps its messages out of the script's output."""
        folder.mkdir(parents=True, exist_ok=True)
        on_gpu = DRIVER.exists()
        capture = ("-c", "cudaProfilerApi", "--capture-range-end=stop") if on_gpu else ()
        return (
            "sh", "-c", _APART, str(folder / "nsys.log"),
            "nsys", "profile", "-t", "cuda,nvtx" if on_gpu else "nvtx", "-s", "none",
            "--cpuctxsw=none", *capture, "--kill=none", "-f", "true", "-o", str(folder / "nsys-%p"),
            "sh", "-c", _BACK, _file_mask(), *command,
        )  # fmt: skip

    def timeline(self, log: ProcessLog, window: ProfileEvent, folder: Path) -> Timeline | None:
        """The process's part of the report that holds it."""
        reports = sorted(folder.glob(f"nsys-*{SUFFIX}"))
        if not reports and any(each.name == self.name for each in window.profilers):
            raise GpurunError("nsys wrote no report", f"{folder / 'nsys.log'} says why")
        for report in reports:
            report.chmod(0o600)
            with exported(report) as database:
                found = from_nsys.read(database, log.process.pid)
            if found:
                return found[0]
        return None


def _file_mask() -> str:
    """The permissions that the script's own files get, in octal digits."""
    mask = os.umask(0o077)
    os.umask(mask)
    return f"{mask:04o}"
