"""A rank's last words: when it ended, and by which exception.

The agent sees only exit codes, and of ranks that fail together not which came first: one of them
failed, and the others lost the connection to it. Read when python exits, so that no hook of ours
stands where the script may look (`sys.excepthook`).
"""

from __future__ import annotations

import atexit
import os
import sys
import time

from gpurun.records.events import LastWordsEvent
from gpurun.runtime.core.recorder import RECORDER, error_text

_SPOKEN: set[int] = set()
"""Processes (this one, or the one it was forked from) that have said them."""


def expect() -> None:
    """Say them when this process, and no child forked from it, exits."""
    owner = os.getpid()
    atexit.register(lambda: say() if os.getpid() == owner else None)


def say() -> None:
    """Write the event, once."""
    if os.getpid() in _SPOKEN:
        return
    _SPOKEN.add(os.getpid())
    error = getattr(sys, "last_value", None)
    RECORDER.event(
        LastWordsEvent(
            unix_time_ns=time.time_ns(),
            error=" ".join(error_text(error).split()) if error is not None else None,
        )
    )
