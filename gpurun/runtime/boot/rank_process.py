"""The process of a rank: it ends with its agent, outlives a full log, and says how it ended.

torch's agent starts each rank in a session of its own, and a SIGKILL of the agent leaves them all
running. The kernel's parent-death signal, set first thing in the rank, ends them. (One process
without an agent gets it from the launcher before its program starts.)

Output that goes into a log of ours is lost on a full disk, and the training goes on: python without
gpurun writes no such log, so a `print` must not fail because of it.

The exit record of a rank or a trial says when it ended, and by which exception. The agent sees only
exit codes. If ranks fail together, it does not see the first one: one rank failed, and the others
lost the connection to it. It is read when python exits, so that no hook of ours stands where the
script may look (`sys.excepthook`).

A thread of gloo that drops the last reference to a tensor needs Python's lock. If it asks for the
lock while Python finalizes, C++ aborts the rank: "terminate called without an active exception".
The exit code is 134 after a training that succeeded (torch 2.13, 1 to 3 % of launches on busy
cores). So gloo's threads finish before.
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import signal
import stat
import sys
import time
from typing import Any, TextIO

from gpurun.records.events import ExitRecordEvent
from gpurun.records.spec import RunSpec
from gpurun.runtime.core.recorder import RECORDER, error_text

PR_SET_PDEATHSIG = 1


def is_rank() -> bool:
    """True if this process is a rank that an elastic agent started directly."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.getsid(0) == os.getpid()


def end_with_agent() -> None:
    """Have the kernel kill this rank when the agent's main thread, which forked it, ends."""
    import ctypes

    agent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os.kill(os.getpid(), signal.SIGKILL)


NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class LossyFile(io.FileIO):
    """A file that loses what the disk does not take. The record says so."""

    _told = False

    def write(self, data: Any) -> int:
        """Write, or lose it."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            if not self._told:
                self._told = True
                RECORDER.incomplete(error)
            return memoryview(data).nbytes


def survive_full_logs(spec: RunSpec) -> None:
    """Make stdout and stderr lossy where they are logs: of hidden ranks but the first, and of the
    ranks of a trial."""
    rank = os.environ.get("RANK", "0")
    if spec.trial is None and (spec.parallel is None or rank == "0"):
        return
    for name in ("stdout", "stderr"):
        stream = _lossy(getattr(sys, name))
        vars(sys).update({name: stream, f"__{name}__": stream})


def _lossy(stream: TextIO | None) -> TextIO | None:
    """The stream as python would have made it, but lossy; itself if it is no file."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream  # the process was started without it
    number = stream.fileno()
    if not stat.S_ISREG(os.fstat(number).st_mode):
        return stream
    raw = LossyFile(number, "w", closefd=False)
    raw.name = stream.name
    unbuffered = isinstance(stream.buffer, io.RawIOBase)
    lossy = io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=unbuffered,
    )
    vars(lossy)["mode"] = "w"
    return lossy


END_OF_INPUT = ("", "EOF when reading a line")
"""What `input` says of an input that is over: on a terminal, and elsewhere."""

_WRITTEN: set[int] = set()
"""Processes (this one, or the one it was forked from) that have written their record."""


def write_at_exit(spec: RunSpec) -> None:
    """Write the record when this rank or trial, and no child forked from it, exits."""
    if spec.trial is None and not is_rank():
        return
    owner = os.getpid()
    atexit.register(lambda: write_exit_record() if os.getpid() == owner else None)


def write_exit_record() -> None:
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


TASKS = "/proc/self/task"
GLOO_THREADS = "pt_gloo_runloop"
"""Torch's name for the threads that run collectives of gloo."""
LOOK_SECONDS = 0.005
LOOKS = 20
"""A thread that slept at so many looks in a row has nothing left to drop. It also sleeps while it
waits for a peer, which on busy cores takes tens of milliseconds to answer."""
LIMIT_SECONDS = 2.0


def settle_gloo_before_exit() -> None:
    """Wait for the threads when this process exits, after all that registers itself later."""
    owner = os.getpid()
    atexit.register(lambda: settle_gloo() if os.getpid() == owner else None)


def settle_gloo() -> None:
    """Sleep, with Python's lock free, until every thread of gloo sleeps too."""
    threads = _threads()
    deadline = time.monotonic() + LIMIT_SECONDS
    asleep = 0
    while threads and asleep < LOOKS and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        asleep = asleep + 1 if all(map(_sleeps, threads)) else 0


def _threads() -> list[str]:
    try:
        tasks = os.listdir(TASKS)
        return [task for task in tasks if _told(task, "comm").startswith(GLOO_THREADS)]
    except OSError:
        return []


def _sleeps(task: str) -> bool:
    try:
        return _told(task, "stat").rpartition(")")[2].split()[0] == "S"
    except OSError:
        return True  # it has ended


def _told(task: str, name: str) -> str:
    with open(f"{TASKS}/{task}/{name}") as file:
        return file.read()
