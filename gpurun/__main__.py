"""`python -m gpurun` and the `gpurun` command."""

from __future__ import annotations

import os
import signal
import sys

SIGNALLED = 128
"""An exit code above it stands for a signal, or is one of the script's own: -1 becomes 255."""


def entry() -> None:
    """Exit with the code of `main`, whatever python makes of the end of a process.

    Under PYTHONINSPECT, which is the script's, it would prompt; and a KeyboardInterrupt that passed
    through an `exec` counts as unhandled although it was caught. While gpurun's modules are
    imported, and after the end of `main`, a signal ends the process at once, without a traceback.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # `main` catches it
    try:
        from gpurun.cli import main

        code = main(None)
    except KeyboardInterrupt as again:  # while `main` told of the first one
        code = SIGNALLED + next(iter(again.args), int(signal.SIGINT))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if sys.flags.inspect or code > SIGNALLED:
        os._exit(code)
    for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:  # python would exit with 120 for what nobody can read
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    sys.exit(code)


if __name__ == "__main__":
    entry()
