"""The attempts at running the ranks, as the launcher noted them in the run folder."""

from __future__ import annotations

from pathlib import Path

from gpurun.records.codec import RecordError, from_json
from gpurun.records.parse_json import JsonLines
from gpurun.records.ranks import ATTEMPTS_FILE, Attempt


def read_attempts(run_dir: Path, notes: list[str] | None = None) -> tuple[Attempt, ...]:
    """In their order; none for a run without an agent. `notes` gains what could not be read."""
    path = run_dir / ATTEMPTS_FILE
    if not path.exists():
        return ()
    found = []
    lines = JsonLines(path)
    for document in lines:
        try:
            found.append(from_json(Attempt, document))
        except RecordError as error:
            lines.problem(f"an attempt is unreadable ({error})")
    if notes is not None:
        notes += lines.notes()
    return tuple(found)
