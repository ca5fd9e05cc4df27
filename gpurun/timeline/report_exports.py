"""Reports of Nsight Systems and Nsight Compute, converted by NVIDIA's own tools to be read.

A report of Nsight Systems holds the whole environment of the script, tokens included, and so does
its export: it lives only while it is read.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpurun.errors import GpurunError

EXPORT_SECONDS = 600
OPEN_COUNTERS = (
    "run as root (a container: `--cap-add SYS_ADMIN`), or load the nvidia module with "
    "NVreg_RestrictProfilingToAdminUsers=0"
)
"""Against ERR_NVGPUCTRPERM: NVIDIA's drivers keep the GPU's counters for administrators."""
MOST = 5
_MESSAGE = re.compile(r"==(ERROR|WARNING)==\s*(?:Error:\s*)?(\S.*)")
BY_HAND = {
    "nsys": "nsys export -t sqlite --lazy=false -o report.sqlite REPORT",
    "ncu": "ncu --import REPORT --csv --page raw --print-units base > kernels.csv",
}
EXPORTS = (".sqlite", ".db", ".csv")
"""Files that need no conversion."""


@contextmanager
def exported(report: Path) -> Iterator[Path]:
    """A report's export (SQLite of Nsight Systems, the raw page of Nsight Compute), or the file
    itself if it is one; `GpurunError` where there is none.
    """
    if report.name.lower().endswith(EXPORTS):
        yield report
        return
    report = report.absolute()  # no tool takes its name for an option
    with tempfile.TemporaryDirectory(prefix="gpurun-export-") as folder:
        if report.name.lower().endswith(".ncu-rep"):
            export = Path(folder) / f"{report.name}.csv"
            page = ("--csv", "--page", "raw", "--print-units", "base")
            done = _converted(report, ("ncu", "--import", str(report), *page), "Nsight Compute")
            if done.returncode == 0:
                export.write_text(done.stdout, encoding="utf-8")
        else:
            export = Path(folder) / "export.sqlite"
            options = ("-t", "sqlite", "--lazy=false", "-f", "true", "-o", str(export))
            done = _converted(report, ("nsys", "export", *options, str(report)), "Nsight Systems")
        if not export.exists():  # nsys may end with code 0 then
            said = (done.stderr or done.stdout).strip().splitlines()
            told = (*messages(said), *said[-1:], f"the tool ended with code {done.returncode}")
            raise GpurunError(f"{report.name} cannot be read: {told[0]}", "record it again")
        yield export


def _converted(report: Path, command: Sequence[str], tool: str) -> subprocess.CompletedProcess[str]:
    what, env = f"{report.name} cannot be read: {command[0]}", {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command, env=env, capture_output=True, text=True, errors="replace",
            timeout=EXPORT_SECONDS, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        todo = f"install {tool}, or name its export from elsewhere: {BY_HAND[command[0]]}"
        raise GpurunError(f"{what} is not installed", todo) from None
    except subprocess.TimeoutExpired:
        raise GpurunError(f"{what} did not end", "record fewer steps") from None


def messages(lines: Iterable[str]) -> tuple[str, ...]:
    """Errors among the lines that it printed, then warnings; each once, at most `MOST`."""
    said = [found.groups() for line in lines if (found := _MESSAGE.match(line))]
    ordered = sorted(said, key=lambda message: message[0] != "ERROR")
    return tuple(dict.fromkeys(text.strip().rstrip(".") for _, text in ordered))[:MOST]


def cure(said: Sequence[str]) -> str:
    """What to do about these messages."""
    if any("ERR_NVGPUCTRPERM" in text for text in said):
        return OPEN_COUNTERS
    return "mend what these messages name, and profile again"
