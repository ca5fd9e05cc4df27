"""The spec of a launched program, and the environment that leads it there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpurun.measure.kernel_facts import kernel_oom_kills, start_ticks
from gpurun.records.codec import to_json
from gpurun.records.spec import SPEC_VARIABLE, RunSpec
from gpurun.rundir import write_json


def write_spec(spec: RunSpec) -> Path:
    """Write it into its run folder, with what only the kernel knows; OSError."""
    path = Path(spec.run_dir) / "spec.json"
    started, kills = start_ticks(spec.launcher_pid), kernel_oom_kills()
    write_json(path, to_json(replace(spec, kernel_oom_kills=kills, launcher_started=started)))
    return path


BOOTSTRAP = Path(__file__).resolve().parent.parent / "runtime" / "bootstrap"


def child_environment(spec_path: Path, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with our bootstrap folder first on PYTHONPATH and the spec named.

    The current folder is never put on PYTHONPATH: an empty PYTHONPATH stays without empty parts,
    which python would read as the current folder.
    """
    inherited = base.get("PYTHONPATH", "")
    parts = [part for part in (str(BOOTSTRAP), inherited) if part]
    if inherited.split(os.pathsep)[0] == str(BOOTSTRAP):
        parts = [inherited]  # gpurun inside gpurun
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(parts),
        SPEC_VARIABLE: str(spec_path),
    }
