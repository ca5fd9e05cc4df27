"""Reports of NVIDIA's profilers, exported by the tool that wrote them to what gpurun reads."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from gpurun.errors import GpurunError

NSYS_REPORTS = (".nsys-rep", ".qdrep")
NCU_REPORTS = (".ncu-rep",)
BY_HAND = {
    "nsys": "nsys export -t sqlite --lazy=false -o report.sqlite REPORT",
    "ncu": "ncu --import REPORT --csv --page raw --print-units base > kernels.csv",
}
EXPORT_SECONDS = 600
"""An export that takes longer is given up."""


def exported(path: Path, folder: Path) -> Path:
    """The file to read: the report's export in `folder`, or the path itself if it is no report."""
    if path.name.lower().endswith(NSYS_REPORTS):
        target = folder / f"{path.stem}.sqlite"
        command = ["nsys", "export", "-t", "sqlite", "--lazy=false", "-f", "true", "-o"]
        _run([*command, str(target), str(path)], path, "nsys", target, written=True)
        return target
    if path.name.lower().endswith(NCU_REPORTS):
        target = folder / f"{path.stem}.csv"
        command = ["ncu", "--import", str(path), "--csv", "--page", "raw", "--print-units", "base"]
        _run(command, path, "ncu", target, written=False)
        return target
    return path


def _run(command: list[str], report: Path, tool: str, target: Path, *, written: bool) -> None:
    """Run the tool; it writes `target` itself, or its output is what `target` is to hold."""
    if shutil.which(tool) is None:
        raise GpurunError(
            f"{report} can be read by {tool} only, which is not installed here",
            f"export it where {tool} is, and name the export: {BY_HAND[tool]}",
        )
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            timeout=EXPORT_SECONDS,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise GpurunError(f"{tool} took too long to export {report}", "export it by hand") from None
    if not written and done.returncode == 0:
        target.write_bytes(done.stdout)
    if done.returncode != 0 or not target.exists():
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"exit code {done.returncode}"
        raise GpurunError(
            f"{tool} could not export {report}: {why}",
            f"see whether it is a whole report, and {tool} as new as the one that wrote it",
        )
