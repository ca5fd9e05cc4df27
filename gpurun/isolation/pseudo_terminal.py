"""A pseudo-terminal for a trial: 24×80, output in a bounded log, input always at its end."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import threading
from pathlib import Path

ROWS, COLUMNS = 24, 80
LOG_LIMIT_BYTES = 16 << 20
CUT = b"[earlier output cut]\n"
_END_OF_FILE = b"\x04"
_REFILL_SECONDS = 0.25


class PseudoTerminal:
    """Owns the master side and a thread that drains it into `log` until nobody holds the slave.

    A read of the terminal sees end-of-file: the end-of-file character is typed again and again, so
    it is there also after the script has flushed its input.
    """

    def __init__(self, log: Path, limit: int = LOG_LIMIT_BYTES) -> None:
        self.master, self.slave = os.openpty()  # of `pty` the error has no number
        _configure(self.slave)
        os.set_blocking(self.master, False)
        own = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._log = open(own, "w+b", buffering=0)  # noqa: SIM115 - scripts print their arguments
        self._limit = limit
        self._stop, self._stopper = os.pipe()
        self._thread = threading.Thread(target=self._drain, name="gpurun-terminal", daemon=True)

    def start(self) -> None:
        """Begin to drain. The sandbox's processes hold the slave now; ours is closed."""
        self._close("slave")
        self._thread.start()

    def finish(self, timeout: float = 2.0) -> None:
        """Wait at most `timeout` seconds for output that is on its way; then all is closed."""
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._close("_stopper")
        if self._thread.ident is not None:
            self._thread.join()
        for name in ("master", "slave", "_stop"):
            self._close(name)
        self._log.close()

    def _close(self, name: str) -> None:
        """Close a descriptor once, also where a signal's exception comes in between."""
        descriptor = getattr(self, name)
        setattr(self, name, -1)
        if descriptor >= 0:
            os.close(descriptor)

    def _drain(self) -> None:
        poller = select.poll()
        poller.register(self.master, select.POLLIN)
        poller.register(self._stop, select.POLLIN)
        while True:
            self._type_end_of_file()
            ready = dict(poller.poll(_REFILL_SECONDS * 1000))
            if self.master in ready:
                try:
                    block = os.read(self.master, 1 << 16)
                except BlockingIOError:
                    continue
                except OSError:  # EIO: nobody holds the slave any more
                    return
                try:
                    self._keep(block)
                except OSError:  # no room for it; undrained, the script would wait for ever
                    pass
            elif ready:
                return

    def _type_end_of_file(self) -> None:
        try:
            os.write(self.master, _END_OF_FILE)
        except OSError:  # the input is full of them, or nobody is there
            pass

    def _keep(self, block: bytes) -> None:
        """Append; at the limit only the last half stays, since the end tells why a trial died."""
        self._log.write(block)
        if self._log.tell() > self._limit:
            self._log.seek(-self._limit // 2, os.SEEK_END)
            tail = self._log.read()
            self._log.seek(0)
            self._log.truncate()
            self._log.write(CUT + tail)


def _configure(slave: int) -> None:
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    mode = termios.tcgetattr(slave)
    mode[1] &= ~termios.OPOST
    mode[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, mode)
