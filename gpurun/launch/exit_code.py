"""The end of a launched program: its exit code or signal, its last lines, the error they name."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path


def exit_code_of(returncode: int) -> int:
    """A shell's exit code for a return code that is negative where a signal ended the process."""
    return 128 - returncode if returncode < 0 else returncode


def signal_name(returncode: int) -> str | None:
    """The name of the signal in a negative return code: "SIGKILL"; None if there was none."""
    if returncode >= 0:
        return None
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return str(-returncode)  # a real-time signal


OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|an't allocate memory|annot allocate memory|MemoryError"
    r"|_ALLOC_FAILED"
)
EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)\b")
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
FAILED_FIRST = re.compile(r"^gpurun: rank \d+ failed first: ")
"""The launcher's prefix of a failed rank's error."""
AT_THE_END = 65536
"""Bytes at the end of a rank's output that are read."""
OF_RANK = re.compile(r"^\[rank\d+\]:[ ]?", re.MULTILINE)
"""torch's prefix of each traceback line in a rank."""


def out_of_memory(log: Path) -> str | None:
    """The exception by which a process says so at the end of its output, None if it does not."""
    lines = (FAILED_FIRST.sub("", line) for line in last_lines(log, AT_THE_END))
    return next(filter(is_out_of_memory, lines), None)


def is_out_of_memory(line: str) -> bool:
    """True for a line that names an exception for want of memory."""
    return EXCEPTION.match(line) is not None and OUT_OF_MEMORY.search(line) is not None


def last_error_line(log: Path) -> str:
    """Why a failed trial failed: the last line that names an exception, else the last line."""
    from gpurun.records.script_arguments import masked_text  # the supervisor needs none of it

    words = last_lines(log)
    named = [line for line in words if EXCEPTION.match(line)]
    return masked_text((named or words or [""])[-1].strip())[:200]


def last_lines(log: Path, limit: int = 8192) -> list[str]:
    """The lines in the last `limit` bytes of an output, without colours, ranks and empty ones."""
    from gpurun.records.parse_json import open_regular  # the supervisor needs none of it

    try:
        with open_regular(log) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            text = COLOURS.sub("", file.read().decode("utf-8", "replace"))
            lines = OF_RANK.sub("", text).splitlines()
    except OSError:
        return []
    return [line.rstrip() for line in lines if line.strip()]
