"""The exit record of a rank or a trial: when it ended, and by which exception.

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
from gpurun.records.spec import RunSpec
from gpurun.runtime.boot import orphan_ranks
from gpurun.runtime.core.recorder import RECORDER, error_text

END_OF_INPUT = ("", "EOF when reading a line")
"""What `input` says of an input that is over: on a terminal, and elsewhere."""

_WRITTEN: set[int] = set()
"""Processes (this one, or the one it was forked from) that have written their record."""


def write_at_exit(spec: RunSpec) -> None:
    """Write the record when this rank or trial, and no child forked from it, exits."""
    if spec.trial is None and not orphan_ranks.is_rank():
        return
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
            lacks_input=isinstance(error, EOFError) and _raised_by_input(error),
        )
    )


def _raised_by_input(error: EOFError) -> bool:
    """True if `input` found nothing to read; `pickle.load` of a short file raises it, too."""
    if str(error) not in END_OF_INPUT:
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "input" in trace.tb_frame.f_code.co_names
