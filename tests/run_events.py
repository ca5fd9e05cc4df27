"""What the processes of a run have written into its folder, as plain JSON objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def run_in(folder: Path) -> Path:
    """The folder of the one run that was made in a working folder."""
    (run,) = folder.glob(".gpurun/runs/*")
    return run


def processes(run: Path) -> list[list[Event]]:
    """The events of each process, in the order of the files' names."""
    return [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(run.glob("events-*.jsonl"))
    ]


def events(run: Path, kind: str | None = None) -> list[Event]:
    """The events of all processes, those of one kind if it is named."""
    return [x for process in processes(run) for x in process if kind in (None, x["event"])]


def rows_by(clock: str, told: list[Event]) -> list[list[Any]]:
    """The step rows of one clock among events."""
    return [row for x in told if x.get("clock") == clock for row in x["rows"]]
