"""Loader workers that gpurun adds keep apart from the process of the script.

The script loads in its own process and does not expect other processes of its own beside it. So an
added worker takes no notice of a signal that is sent to all processes of a job (by `scancel`,
`timeout` or Ctrl-C): the script alone answers it. A handler that does nothing is used, for what a
worker executes would inherit an ignored signal.

It also has file positions of its own. A forked process shares the position of every open file with
its parent and its siblings. One that seeks and then reads may get another's record, without an
error. The file may be known to nobody but a C extension or a bare number, so all files that the
process has open are opened once more.

Arguments of a loader that a knob sets are marked: it knows them again as its own.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from multiprocessing import process
from types import FrameType, ModuleType
from typing import Any


class MarkedTrue(int):
    """True; it shows and pickles as such. Made by `MarkedTrue(True)`; a script has no such True."""

    def __repr__(self) -> str:
        return "True"

    def __reduce__(self) -> tuple[type[bool], tuple[int]]:
        return bool, (1,)


class MarkedInt(int):
    """A number of workers; it shows and pickles as such."""

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


class AddedWorkers(MarkedInt):
    """The workers of a loader that has none in the script."""


SENT_TO_ALL = frozenset(
    getattr(signal, f"SIG{name}")
    for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "CONT", "XCPU")
)
"""Signals by which people and batch systems tell a job something."""
MARK = "gpurun_added"
KEPT_MARK = "gpurun_kept"
"""Settings of a process that tell a worker that gpurun added it, or keeps it between epochs."""


def settings_of_children() -> dict[str, Any]:
    """What multiprocessing hands on to the processes that this one starts, by any method."""
    config: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
    return config


def mark_children(mark: str, afterwards: ExitStack) -> None:
    """Have the workers that start until `afterwards` is closed know that they are of this kind."""
    settings_of_children()[mark] = True
    afterwards.callback(settings_of_children().pop, mark, None)


def is_added() -> bool:
    """True in a worker that gpurun adds."""
    return MARK in settings_of_children()


def keep_apart(worker: ModuleType) -> None:
    """In an added worker, before its loop begins; `worker` is `torch.utils.data._utils.worker`."""
    handling: Any = worker.signal_handling
    set_handlers_of_torch = handling._set_worker_signal_handlers

    def set_handlers() -> None:
        set_handlers_of_torch()  # one for SIGTERM is among them
        _disregard(SENT_TO_ALL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT_TO_ALL)

    handling._set_worker_signal_handlers = set_handlers
    signal.set_wakeup_fd(-1)  # a script's own event loop would read of it, too


def serve_apart() -> None:
    """In a fork server, without which its workers would count as dead; its children answer."""
    server = os.getpid()
    disregarded = SENT_TO_ALL - {signal.SIGINT}  # it ignores that one by itself
    before = {number: signal.getsignal(number) for number in disregarded}

    def in_child() -> None:
        if os.getppid() == server:
            for number, handler in before.items():
                signal.signal(number, handler)

    _disregard(disregarded)
    os.register_at_fork(after_in_child=in_child)


def end_apart() -> None:
    """In an added worker whose loop has ended: python takes handlers away before the process ends.

    It leaves the signals that are ignored.
    """
    for number in SENT_TO_ALL:
        signal.signal(number, signal.SIG_IGN)


def _disregard(numbers: Collection[signal.Signals]) -> None:
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _do_nothing)
            signal.siginterrupt(number, False)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """A handler; one of the script's own would answer the signal a second time here."""


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
