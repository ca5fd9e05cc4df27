"""Runs recorded on a real GPU (`tests/data/h200`, made by `scripts/record_run.py`), unpacked."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

from gpurun.measure.run_summary import summarise_run
from gpurun.records.codec import from_json
from gpurun.records.result import RunResult
from tests.conftest import REPOSITORY

RECORDED = REPOSITORY / "tests" / "data" / "h200"
CORES = 16
"""Of the machine on which they were recorded."""


def unpacked(name: str, folder: Path, recorded: Path | None = None) -> Path:
    """The run folder of a recording, below `folder`."""
    shutil.unpack_archive((recorded or RECORDED) / f"{name}.tar.xz", folder)
    return folder / name


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def summed_up_again(run: Path) -> RunResult:
    """The result of a run folder, from its events and samples alone."""
    told = from_json(RunResult, document(run / "result.json"))
    return summarise_run(
        run,
        exit_code=told.exit_code,
        wall_seconds=told.wall_seconds,
        status=told.status,
        command=told.command,
    )


def assert_close(one: Any, other: Any, path: str = "") -> None:
    """Equal documents, numbers to nine digits; `one` may have fields that are newer."""
    if isinstance(one, dict):
        assert one.keys() >= other.keys(), path
        for key in other:
            assert_close(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for number, pair in enumerate(zip(one, other, strict=True)):
            assert_close(*pair, f"{path}[{number}]")
    elif isinstance(one, float) and isinstance(other, float):
        assert math.isclose(one, other, rel_tol=1e-9), path
    else:
        assert one == other, path
