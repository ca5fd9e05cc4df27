"""Prepare the gradient probe before torch is imported."""

from __future__ import annotations

import os
from pathlib import Path

from gpurun.records.spec import ProbeSpec
from gpurun.runtime.core import seeds
from gpurun.runtime.probe.files_read import FilesRead
from gpurun.runtime.probe.refused_scripts import note_starts, refuse_libraries
from gpurun.runtime.trial import quiet_loggers


class ScriptProcess:
    """True if this process is the script's first one (or forked from it), and what it has read."""

    is_main = False
    files: FilesRead | None = None


def prepare(probe: ProbeSpec, run_dir: str) -> None:
    """Seed the script, watch what it reads and starts, and quieten loggers."""
    ScriptProcess.is_main = _is_main(Path(run_dir))
    if ScriptProcess.is_main:
        ScriptProcess.files = FilesRead(run_dir)
        ScriptProcess.files.begin()
    seeds.seed_everything(probe.seed, 0)
    quiet_loggers.quieten()
    refuse_libraries()
    note_starts()


def _is_main(run_dir: Path) -> bool:
    """True if this is the script's first process, which says so in a file."""
    mark = run_dir / "main"
    try:
        with mark.open("x") as file:
            file.write(str(os.getpid()))
        return True
    except FileExistsError:
        return mark.read_text() == str(os.getpid())
