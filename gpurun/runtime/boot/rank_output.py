"""Output of a rank that goes into a log of ours: lost on a full disk, and the training goes on.

Python without gpurun writes no such log, so a `print` must not fail because of it.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from typing import Any, TextIO

from gpurun.records.spec import RunSpec
from gpurun.runtime.core.recorder import RECORDER

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
