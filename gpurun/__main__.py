"""`python -m gpurun` and the `gpurun` command."""

from __future__ import annotations

import os
import sys

SIGNALLED = 128
"""An exit code above it stands for a signal, or is one of the script's own: -1 becomes 255."""


def entry() -> None:
    """Exit with the code of `main`, whatever python makes of the end of a process.

    Under PYTHONINSPECT, which is the script's, it would prompt; and a KeyboardInterrupt that passed
    through an `exec` counts as unhandled although it was caught.
    """
    from gpurun.cli import main

    code = main(None)
    if sys.flags.inspect or code > SIGNALLED:
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    entry()
