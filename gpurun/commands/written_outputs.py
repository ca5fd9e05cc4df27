"""Outputs of a command: lines, and the JSON documents that its flags ask for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpurun.errors import GpurunError
from gpurun.report.terminal_output import PREFIX, write_plain
from gpurun.rundir import check_output, json_text, write_json


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


def emit_json(
    place: str | None, document: Any, flag: str = "--json", *, needed: bool = False
) -> None:
    """To the file, or stdout for `-`; a disk that is full then costs the file only.

    `needed`: the command launches nothing and is there for its output: see `must_write`.
    """
    if place == "-":
        sys.stdout.write(json_text(document))
        sys.stdout.flush()
    elif place is not None:
        write = must_write if needed else attempt
        write(flag, lambda: write_json(Path(place), document))


def attempt(what: str, job: Callable[[], None]) -> None:
    """Write something; a line tells where that cannot be."""
    try:
        job()
    except OSError as error:
        say(f"{what} could not be written: {error.strerror or error}")


def must_write(flag: str, job: Callable[[], None]) -> None:
    """Write something; `GpurunError` where that cannot be."""
    try:
        job()
    except OSError as error:
        what = f"{flag} could not be written: {error.strerror or error}"
        raise GpurunError(what, "name another file") from None
