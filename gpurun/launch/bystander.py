"""A process beside the script by which a launcher tells signals to all from signals to itself.

A terminal, `timeout` or a batch system sends a signal to every process of a job. It has reached the
script already, so the launcher must not pass it on. A signal to the launcher alone it must.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

HEARD_SECONDS = 0.05
"""A batch system sends a signal to the processes of a job one after the other, within so long."""
FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
"""The signals that a launcher may pass on."""
WAITS = "import os; os.read(0, 1)"
"""Its program: standard input ends when the launcher does, in whatever way."""


class Bystander:
    """A process in which all signals stay pending: one that it got was sent to all.

    It is the launcher's own python, and the script's words are among its own. So signals sent by
    name reach both or neither.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._words = (sys.executable, "-I", "-S", "-c", WAITS, *command)
        self._heard: set[int] = set()
        self._pid, self._lifeline = 0, -1
        self._start()

    def heard(self, number: int) -> bool:
        """True if it got the signal too."""
        until = time.monotonic() + HEARD_SECONDS
        while number not in self._heard:
            pending = self._pending()
            if number in pending:  # it would not notice a second one: a new process takes over
                self.close()
                self._start()
                self._heard |= pending
            elif time.monotonic() > until:
                return False
            else:
                time.sleep(0.002)
        self._heard.discard(number)
        return True

    def close(self) -> None:
        """End it."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # of a launcher that ignores SIGCHLD
                os.waitpid(self._pid, 0)
            os.close(self._lifeline)
        self._pid = 0

    def _start(self) -> None:
        """Where the system has no process left the id stays 0, and nothing is heard."""
        try:
            waits_on, self._lifeline = os.pipe()
        except OSError:
            return
        null = ((os.POSIX_SPAWN_OPEN, out, os.devnull, os.O_WRONLY, 0) for out in (1, 2))
        actions = ((os.POSIX_SPAWN_DUP2, waits_on, 0), *null)
        try:
            self._pid = os.posix_spawn(
                sys.executable, self._words, os.environ, file_actions=actions, setsigmask=FORWARDED
            )
        except OSError:
            os.close(self._lifeline)
        finally:
            os.close(waits_on)

    def _pending(self) -> set[int]:
        try:
            with open(f"/proc/{self._pid}/status", "rb") as status:
                waiting = next(line for line in status if line.startswith(b"ShdPnd:"))
        except (OSError, StopIteration):
            return set()
        mask = int(waiting.split()[1], 16)
        return {number for number in FORWARDED if mask >> (number - 1) & 1}
