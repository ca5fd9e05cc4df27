"""Signals while gpurun measures: the first one stops the work, later ones are only noted."""

from __future__ import annotations

import os
import select
import signal
import sys
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_SECONDS = 0.02
DRAINED_SECONDS = 0.5
"""A terminal that only lags takes something within this time."""
_ignored: set[int] = set()
"""Numbers of signals whose exception python ignored."""


def leave_stopped_terminals() -> None:
    """Have stdout and stderr lead nowhere where their terminal is stopped (Ctrl-S).

    What we have still to say would wait for it, and so would the end of this process.
    """
    for number in (1, 2):
        stopped = os.isatty(number) and not select.select([], [number], [], DRAINED_SECONDS)[1]
        if stopped:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def deliver_again() -> None:
    """Have a signal come again whose KeyboardInterrupt python had to ignore.

    It does so where the exception is raised in a callback: a finalizer, a hook of `fork`. Only for
    this process, not for its forks.
    """
    ours = os.getpid()

    def ignored(what: sys.UnraisableHookArgs) -> None:
        error = what.exc_value
        if isinstance(error, KeyboardInterrupt) and os.getpid() == ours:
            number = next(iter(error.args), int(signal.SIGINT))
            if number in SIGNALS:
                import threading  # takes its time

                _ignored.add(number)
                threading.Timer(AGAIN_SECONDS, os.kill, (ours, number)).start()
                return
        sys.__unraisablehook__(what)

    sys.unraisablehook = ignored


class SignalGuard:
    """While it is entered, the first signal raises KeyboardInterrupt, with its number and only
    outside of `hold`.

    Further ones are noted: trials are being ended and records written, which must not be cut
    short. `signal` is the first signal's number, None if there was none. What was ignored when we
    were started (`nohup`) stays ignored.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._held = False
        self._before: dict[int, signal.Handlers] = {}

    @property
    def exit_code(self) -> int:
        """As a shell would report the signal; 130 without one."""
        return 128 + (self.signal or signal.SIGINT)

    def hold(self) -> None:
        """From now on nothing is interrupted any more; a signal is noted all the same."""
        self._held = True

    def release(self) -> None:
        """Let signals interrupt again; one that was noted meanwhile does now."""
        self._held = False
        if self.signal is not None:
            raise KeyboardInterrupt(self.signal)

    def __enter__(self) -> SignalGuard:
        for number in SIGNALS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before  # type: ignore[assignment]
                signal.signal(number, self._arrived)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        first = self.signal is None or number in _ignored
        _ignored.discard(number)
        if first:
            self.signal = number
            leave_stopped_terminals()
        if first and not self._held:
            raise KeyboardInterrupt(number)
