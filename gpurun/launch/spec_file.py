"""Writes `spec.json` into a run folder: it tells the launched process what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpurun.measure.oom_kills import kernel_oom_kills
from gpurun.records.codec import to_json
from gpurun.records.spec import RunSpec
from gpurun.rundir import write_json


def write_spec(spec: RunSpec) -> Path:
    """Write it into its run folder, with what the kernel has counted so far; OSError."""
    path = Path(spec.run_dir) / "spec.json"
    write_json(path, to_json(replace(spec, kernel_oom_kills=kernel_oom_kills())))
    return path
