"""Loader workers that gpurun adds keep apart from the process of the script.

The script loads in its own process and does not expect other processes of its own beside it. So an
added worker has file positions of its own, and takes no notice of a signal that is sent to all
processes of a job (by `scancel`, `timeout` or Ctrl-C): the script alone answers it. A handler that
does nothing is used, for what a worker executes would inherit an ignored signal.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from multiprocessing import process
from types import FrameType, ModuleType
from typing import Any

SENT_TO_ALL = frozenset(
    getattr(signal, f"SIG{name}")
    for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "CONT", "XCPU")
)
"""Signals by which people and batch systems tell a job something."""
MARK = "gpurun_added"


def settings_of_children() -> dict[str, Any]:
    """What multiprocessing hands on to the processes that this one starts, by any method."""
    config: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
    return config


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
