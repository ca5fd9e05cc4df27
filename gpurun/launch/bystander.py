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
TELLS = """
import _signal, _thread, posix
_thread.start_new_thread(lambda: (posix.read(0, 1), posix._exit(0)), ())
while True:
    posix.write(1, bytes([_signal.sigwait(_signal.pthread_sigmask(_signal.SIG_BLOCK, ()))]))
"""
"""Its program: a byte for each signal. Standard input ends when the launcher does, in whatever way;
the modules are those that are built into python, for it must be there soon."""


class Bystander:
    """A process in which all signals stay blocked, and which tells of each that it gets.

    It is the launcher's own python, and the script's words are among its own. So signals sent by
    name reach both or neither.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._told: list[int] = []
        self._pid, self._lifeline, self._tells = 0, -1, -1
        self._start((sys.executable, "-I", "-S", "-c", TELLS, *command))

    def heard(self, number: int) -> bool:
        """True if it got the signal too."""
        until = time.monotonic() + HEARD_SECONDS
        while True:
            if self._pending(number):  # it will be told, if not at once
                until = time.monotonic() + HEARD_SECONDS
            with suppress(BlockingIOError):
                self._told += os.read(self._tells, 1024) if self._pid else b""
            if number in self._told:
                self._told.remove(number)
                return True
            if time.monotonic() > until:
                return False
            time.sleep(0.002)

    def close(self) -> None:
        """End it."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # of a launcher that ignores SIGCHLD
                os.waitpid(self._pid, 0)
            os.close(self._lifeline)
            os.close(self._tells)
        self._pid = 0

    def _start(self, words: tuple[str, ...]) -> None:
        """Where the system has no process left the id stays 0, and nothing is heard."""
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            (its_input, lifeline, tells, its_output) = ends
            actions = (
                (os.POSIX_SPAWN_DUP2, its_input, 0),
                (os.POSIX_SPAWN_DUP2, its_output, 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            )
            self._pid = os.posix_spawn(
                sys.executable, words, os.environ, file_actions=actions, setsigmask=FORWARDED
            )
        except OSError:
            for end in ends:
                os.close(end)
            return
        os.close(its_input)
        os.close(its_output)
        os.set_blocking(tells, False)
        self._lifeline, self._tells = lifeline, tells

    def _pending(self, number: int) -> bool:
        """True while the signal has reached it and is not told yet."""
        try:
            with open(f"/proc/{self._pid}/status", "rb") as status:
                waiting = next(line for line in status if line.startswith(b"ShdPnd:"))
        except (OSError, StopIteration):
            return False
        return bool(int(waiting.split()[1], 16) >> (number - 1) & 1)
