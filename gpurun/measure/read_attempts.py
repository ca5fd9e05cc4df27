"""The attempts at running the ranks, as the launcher noted them in the run folder."""

from __future__ import annotations

import json
from pathlib import Path

from gpurun.records.codec import RecordError, from_json
from gpurun.records.ranks import ATTEMPTS_FILE, Attempt


def read_attempts(run_dir: Path) -> tuple[Attempt, ...]:
    """In their order; none for a run without an agent. A line that cannot be read is left out."""
    try:
        lines = (run_dir / ATTEMPTS_FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ()
    found = []
    for line in lines:
        try:
            found.append(from_json(Attempt, json.loads(line)))
        except (ValueError, RecordError):
            continue  # torn by a full disk
    return tuple(found)
