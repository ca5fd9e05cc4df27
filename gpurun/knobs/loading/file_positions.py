"""Gives a forked process file positions of its own.

A forked process shares the position of every open file with its parent and its siblings. One that
seeks and then reads may get another's record, without an error. The file may be known to nobody but
a C extension or a bare number, so all files that the process has open are opened once more.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator

OPENED = "/proc/self/fd"
KEPT = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_SYNC | getattr(os, "O_DIRECT", 0)
"""Flags of an open file that it is opened again with. Those that act at the first opening only
(O_TMPFILE is among what the kernel tells) would fail."""
OUTPUTS = (1, 2)
"""A process and its children write one after the other there."""


def own_positions() -> None:
    """Open every file that this process reads by position again, under its number.

    Raises OSError if a file cannot be opened again.
    """
    for number, flags, position in list(_read_by_position()):
        again = _open_again(number, flags)
        os.lseek(again, position, os.SEEK_SET)
        os.dup2(again, number, inheritable=os.get_inheritable(number))
        os.close(again)


def why_shared() -> str | None:
    """Why a fork of this process could have no positions of its own; None if it could."""
    try:
        for number, flags, _ in _read_by_position():
            os.close(_open_again(number, flags))
    except OSError as error:
        return f"{os.path.realpath(error.filename)} cannot be opened again: {error.strerror}"
    return None


def _read_by_position() -> Iterator[tuple[int, int, int]]:
    """Number, flags and position of the open files and disks that can be read."""
    for number in map(int, os.listdir(OPENED)):
        try:
            kind, flags = os.fstat(number).st_mode, fcntl.fcntl(number, fcntl.F_GETFL)
            position = os.lseek(number, 0, os.SEEK_CUR)
        except OSError:
            continue  # without a position, as a pipe; or closed by now, as that of the listing
        reads = number not in OUTPUTS and flags & os.O_ACCMODE != os.O_WRONLY
        if reads and (stat.S_ISREG(kind) or stat.S_ISBLK(kind)):
            yield number, flags, position


def _open_again(number: int, flags: int) -> int:
    return os.open(f"{OPENED}/{number}", flags & KEPT | os.O_CLOEXEC)
