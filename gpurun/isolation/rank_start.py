"""The program that the elastic agent starts in each rank; it turns into the script.

Ranks other than 0 enter a private layer first.

Started as `python -I -S -c` with an order in JSON and the rank's command behind it. The process
that the agent started becomes the script, so exit codes and signals need no passing on. Rank 0
imports nothing more than this module.
"""

from __future__ import annotations

import errno
import os
import signal
import sys

TYPE_CHECKING = False  # of typing, which would take as long to import as all the rest
if TYPE_CHECKING:
    from typing import NoReturn

NOT_SET_UP = 70


def main() -> NoReturn:
    """Become the rank's command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    order, *command = sys.argv[1:]
    environment = _environment()
    if environment.get(b"RANK", b"0") != b"0":
        try:
            from gpurun.isolation.rank_overlay import enter_layer

            enter_layer(order, tuple(command), environment)
        except Exception as error:  # whatever it is, the script must not run on the real files
            from gpurun.isolation.sandbox_init import describe

            rank = os.fsdecode(environment[b"RANK"])
            _say(f"no private layer for rank {rank}: {describe(error)}")
            os._exit(NOT_SET_UP)
    _become(command, environment)


def _environment() -> dict[bytes, bytes]:
    """The environment as the agent gave it (this interpreter may have added its locale)."""
    with open("/proc/self/environ", "rb") as file:
        entries = file.read().split(b"\0")
    return dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)


def _become(command: list[str], environment: dict[bytes, bytes]) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # python ignores these for itself
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        _say(f"cannot run {command[0]}: {error.strerror}")
        os._exit(126 if error.errno == errno.EACCES else 127)


def _say(line: str) -> None:
    from gpurun.errors import visible

    os.write(2, f"gpurun: {visible(line)}\n".encode())
