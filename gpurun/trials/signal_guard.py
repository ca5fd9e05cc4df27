"""Signals while gpurun measures: the first one stops the work, later ones are only noted."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
        first = self.signal is None
        if first:
            self.signal = number
        if first and not self._held:
            raise KeyboardInterrupt(number)
