"""Outputs of `gpurun bench`: Markdown, and documents for trackers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gpurun.bench.tracker_formats import TRACKERS, Tracked
from gpurun.commands.written_outputs import attempt, emit_json, say
from gpurun.rundir import write_whole

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
"""The file that GitHub shows on the page of a job."""


def emit_markdown(place: str | None, text: str) -> None:
    """To the file, and to the page of the job where there is one."""
    if place is not None:
        attempt("--markdown", lambda: write_whole(Path(place), text))
    summary = os.environ.get(SUMMARY_VARIABLE)
    if summary:
        attempt(SUMMARY_VARIABLE, lambda: _append(Path(summary), text))


def emit_exports(exports: Sequence[tuple[str, str]], runs: Sequence[Tracked]) -> None:
    """For each tracker its document; stdout for `-`."""
    for kind, place in exports:
        document = TRACKERS[kind](runs)
        if not document:
            say(f"--export {kind}: no figure for it was measured")
        emit_json(place, document, f"--export {kind}")


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
