"""The exit record of a rank: when it ended, and by which exception.

The agent sees only exit codes. If ranks fail together, it does not see the first one: one rank
failed, and the others lost the connection to it. Read when python exits, so that no hook of ours
stands where the script may look (`sys.excepthook`).
"""

from __future__ import annotations

import atexit
import os
import sys
import time

from gpurun.records.events import ExitRecordEvent
from gpurun.runtime.core.recorder import RECORDER, error_text

_WRITTEN: set[int] = set()
"""Processes (this one, or the one it was forked from) that have written their record."""


def write_at_exit() -> None:
    """Write the record when this process, and no child forked from it, exits."""
    owner = os.getpid()
    atexit.register(lambda: write() if os.getpid() == owner else None)


def write() -> None:
    """Write the event, once."""
    if os.getpid() in _WRITTEN:
        return
    _WRITTEN.add(os.getpid())
    error = getattr(sys, "last_value", None)
    RECORDER.event(
        ExitRecordEvent(
            unix_time_ns=time.time_ns(),
            error=" ".join(error_text(error).split()) if error is not None else None,
        )
    )
