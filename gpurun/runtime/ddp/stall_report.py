"""Reports the rank that the others wait for, if no rank has taken a step for long.

It stops no rank: one may compile, load or evaluate for as long as it likes. It names the line of
the script at which a training stands still.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpurun.knobs.callers import users_line
from gpurun.runtime.ddp.rank_info import RankInfo, warn

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

STILL_SECONDS = 60.0
"""Ranks that have taken no step for this long report where they are."""


class StallReport:
    """The state of one rank, and rank 0's report of all. A thread updates it."""

    def __init__(self, rank_info: RankInfo) -> None:
        self._rank_info = rank_info
        self._exchanges = 0
        self._step = -1
        self._since = 0.0
        self._reported = -1
        """The step of the last report."""

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Inside it may wait for others."""
        self._exchanges += 1
        try:
            yield
        finally:
            self._exchanges -= 1

    def look(self, step: int, store: Store) -> None:
        """Report where this rank is, if it has been in this step for long.

        `store`: torch's store, through which ranks report to rank 0.
        """
        if step != self._step:
            self._step, self._since = step, time.monotonic()
        if self._reported == step or time.monotonic() - self._since < STILL_SECONDS:
            return
        line = "" if self._exchanges else _line()
        store.set(self._key(self._rank_info.rank), f"{step} {line}")
        if self._rank_info.rank == 0:
            self._report(step, store)

    def _report(self, step: int, store: Store) -> None:
        lines = {}
        for rank in range(self._rank_info.world_size):
            if not store.check([self._key(rank)]):
                return
            at, _, line = store.get(self._key(rank)).decode().partition(" ")
            if int(at) != step:
                return
            lines[rank] = line
        busy = {rank: line for rank, line in lines.items() if line}
        if len(busy) == len(lines):
            return  # none waits for another
        self._reported = step
        since = f"in step {step + 1} for {STILL_SECONDS:.0f} s and more"
        if not busy:
            warn(f"{since} all ranks wait for each other: their exchanges do not match")
        for rank, line in busy.items():
            warn(f"{since} the others wait for rank {rank}, which is at {line}")

    def _key(self, rank: int) -> str:
        return f"gpurun/stalled/{rank}"


def _line() -> str:
    """The line of the script that runs, or else the innermost line of any code."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return "an unknown line"
    return users_line(frame) or f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
