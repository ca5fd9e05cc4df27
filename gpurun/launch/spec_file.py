"""Writes `spec.json` into a run folder: it tells the launched process what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpurun.measure.oom_kills import kernel_oom_kills
from gpurun.measure.start_ticks import start_ticks
from gpurun.records.codec import to_json
from gpurun.records.spec import RunSpec
from gpurun.rundir import write_json


def write_spec(spec: RunSpec) -> Path:
    """Write it into its run folder, with what only the kernel knows; OSError."""
    path = Path(spec.run_dir) / "spec.json"
    started, kills = start_ticks(spec.launcher_pid), kernel_oom_kills()
    write_json(path, to_json(replace(spec, kernel_oom_kills=kills, launcher_started=started)))
    return path
