"""Errors of ours: one line saying what, one saying what to do. And the exit codes, in one table.

All lines of ours go to stderr through `say` or `write_line`, launcher and runtime alike.
"""

from __future__ import annotations

import enum
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
