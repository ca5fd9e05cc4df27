"""Outputs of `gpurun bench`: lines, JSON, Markdown and documents for trackers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpurun.bench.tracker_formats import TRACKERS, Tracked
from gpurun.report.terminal_output import PREFIX, write_plain
from gpurun.rundir import check_output, json_text, write_json, write_whole

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
"""The file that GitHub shows on the page of a job."""


def check_outputs(**places: str | None) -> None:
    """`GpurunError` where a file that is to be written at the end (`json=...`) cannot be."""
    for flag, place in places.items():
        if place is not None and place != "-":
            check_output(f"--{flag}", Path(place))


def say(line: str) -> None:
    """One line of ours."""
    write_plain([f"{PREFIX}{line}"])


def teller(quiet: bool) -> Callable[[str], None]:
    """Who hears what happens, a line each: the terminal, or nobody."""
    return (lambda line: None) if quiet else say


def emit_json(place: str | None, document: Any, flag: str = "--json") -> None:
    """To the file, or stdout for `-`; a disk that is full then costs the file only."""
    if place == "-":
        sys.stdout.write(json_text(document))
        sys.stdout.flush()
    elif place is not None:
        _attempt(flag, lambda: write_json(Path(place), document))


def emit_markdown(place: str | None, text: str) -> None:
    """To the file, and to the page of the job where there is one."""
    if place is not None:
        _attempt("--markdown", lambda: write_whole(Path(place), text))
    summary = os.environ.get(SUMMARY_VARIABLE)
    if summary:
        _attempt(SUMMARY_VARIABLE, lambda: _append(Path(summary), text))


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


def _attempt(what: str, job: Callable[[], None]) -> None:
    try:
        job()
    except OSError as error:
        say(f"{what} could not be written: {error.strerror or error}")
