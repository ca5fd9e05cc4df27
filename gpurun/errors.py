"""Errors of ours: one line saying what, one saying what to do. And the exit codes, in one table.

All lines of ours go to stderr through `say` or `write_line`, launcher and runtime alike.
"""

from __future__ import annotations

import enum
import errno
import os
import sys


class ExitCode(enum.IntEnum):
    """Exit codes of gpurun itself; a plain run exits with the script's own."""

    OK = 0
    REGRESSION = 1
    USAGE = 2
    INCONCLUSIVE = 3
    NO_BASELINE = 4
    BENCHMARK_FAILED = 5
    TRAINING_DIFFERS = 6
    INTERNAL = 70
    INTERRUPTED = 130


class GpurunError(Exception):
    """Something is wrong that the user can mend. `what` and `todo` are one line each."""

    verdict = "error"

    def __init__(self, what: str, todo: str = "", code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(what)
        self.what = what
        self.todo = todo
        self.code = code


class Refused(GpurunError):
    """The script cannot be run as it was asked to; nothing has run yet."""

    verdict = "refused"


class ScriptFailed(GpurunError):
    """The script failed by itself. Its output was shown; `exit_code` is its own."""

    verdict = "failed"

    def __init__(self, what: str, exit_code: int) -> None:
        super().__init__(what)
        self.exit_code = exit_code


LIMITS = {
    errno.EMFILE: (
        "this process may open no more files",
        "raise its limit (ulimit -n): 1024 are enough for most runs",
    ),
    errno.ENFILE: ("the system may open no more files", "close some, or raise fs.file-max"),
    errno.EAGAIN: (
        "no further process or thread may start",
        "end some, or raise the limit (ulimit -u, or pids.max of the container)",
    ),
    errno.ENOMEM: ("there is no memory left", "free some, or raise the limit (ulimit -v)"),
}
"""Limits of the system that any call may meet: the line that tells, and what to do."""


def limit_in(text: str) -> int | None:
    """The number of the limit that the system's words in a text are of."""
    return next((number for number in LIMITS if os.strerror(number) in text), None)


def cure_of(text: str, otherwise: str) -> str:
    """What to do about a failure told by a text: of a limit its own line."""
    number = limit_in(text)
    return otherwise if number is None else LIMITS[number][1]


def at_limit(error: BaseException) -> GpurunError | None:
    """The error as one of a limit of the system; None if it is another."""
    is_write = hasattr(error, "characters_written")  # to a pipe that is full, not to be waited for
    number = error.errno if isinstance(error, OSError) and not is_write else None
    text = str(error)
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    elif isinstance(error, RuntimeError) and text.startswith("can't start new thread"):
        number = errno.EAGAIN
    elif isinstance(error, ImportError):  # the loader of shared libraries has only words
        number = limit_in(text)
        if text.rstrip().endswith("failed to map segment from shared object"):
            number = errno.ENOMEM
    told = LIMITS.get(number or 0)
    return GpurunError(*told) if told else None


def say(text: str) -> None:
    """Write one line of ours to stderr, if it is open."""
    write_line(f"gpurun: {text}")


def write_line(line: str) -> None:
    """The same without our name in front."""
    try:
        sys.stderr.write(f"{visible(line)}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass  # stderr is gone, closed or None; exit code and record still tell


def visible(text: str) -> str:
    """The text with an escape for each character that a terminal obeys or that is none.

    Paths, arguments and errors may hold any byte: an escape sequence moves the cursor, a line break
    makes a line that reads as ours.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\N{NO-BREAK SPACE}" else _escape(c) for c in text)


def _escape(character: str) -> str:
    """As python writes it; what stands for a byte that was no text becomes that byte."""
    byte = ord(character) - 0xDC00
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else repr(character)[1:-1]
