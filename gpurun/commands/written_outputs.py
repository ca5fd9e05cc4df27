"""Outputs of a command: lines, and the JSON documents that its flags ask for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpurun.errors import GpurunError, write_line
from gpurun.report.terminal_output import PREFIX, write_plain
from gpurun.rundir import check_output, json_text, write_output


def print_verdict(verdict: str, exit_code: int, **facts: object) -> None:
    """Write `verdict=<verdict> exit=<code> key=value ...` to stderr; None facts are left out."""
    words = [f"verdict={verdict}", f"exit={exit_code}"]
    words += [f"{key}={_quoted(value)}" for key, value in facts.items() if value is not None]
    write_line(" ".join(words))


def _quoted(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f'"{text}"' if " " in text or not text else text


TEXTS = frozenset({"export", "html", "json", "markdown"})
"""Flags whose file may be stdout, for `-`."""


def check_outputs(**places: str | None) -> None:
    """`GpurunError` where a file that is to be written at the end (`json=...`) cannot be."""
    for flag, place in places.items():
        if place is not None and not (place == "-" and flag in TEXTS):
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
    """The document as `emit_text` writes it."""
    if place is not None:
        emit_text(place, json_text(document), flag, needed=needed)


def emit_text(place: str, text: str, flag: str, *, needed: bool = False) -> None:
    """Write what a flag asked for to its file, or to stdout for `-`.

    Where that cannot be: a `GpurunError` if it is `needed`, else a line.
    """
    write = must_write if needed else attempt
    if place == "-":
        write(f"{flag}: stdout", lambda: write_stdout(text))
    else:
        write(f"{flag}: {place}", lambda: write_output(Path(place), text))


def write_stdout(text: str) -> None:
    """To stdout, in UTF-8 as to a file; a reader that has left (`| head`) had enough.

    `OSError` where there is no room.
    """
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
        sys.stdout.flush()
    except OSError as error:
        # what is left in the buffer would raise once more when python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise


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
