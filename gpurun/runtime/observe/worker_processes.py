"""The loader workers of this process, which a turn of a live pair stops; and its epochs."""

from __future__ import annotations

import os
import signal
import weakref
from contextlib import suppress
from typing import cast

from gpurun.runtime.observe.torch_loader_internals import LoaderIterator, WorkersIterator


class LoaderWorkers:
    """The iterators with workers that are alive in this process.

    `passes`: how often a loader that had trained was begun again, which is an epoch start.
    """

    def __init__(self) -> None:
        self.passes = 0
        self._iterators: list[weakref.ref[WorkersIterator]] = []

    def opened(self, iterator: LoaderIterator, trained: bool) -> None:
        """A loader was begun; `trained`: one that is built at its place has fed training."""
        self.passes += trained
        if hasattr(iterator, "_workers"):
            alive = [ref for ref in self._iterators if ref() not in (None, iterator)]
            self._iterators = [*alive, weakref.ref(cast(WorkersIterator, iterator))]

    @property
    def any(self) -> bool:
        """True if a loader with workers is alive."""
        return any(ref() is not None for ref in self._iterators)

    def stop(self) -> list[int]:
        """Stop every worker at once, before it prepares more; return the stopped processes."""
        alive = (iterator for ref in self._iterators if (iterator := ref()) is not None)
        pids = [worker.pid for iterator in alive for worker in iterator._workers]
        send(pids, signal.SIGSTOP)
        return pids


def send(pids: list[int], number: int) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


WORKERS = LoaderWorkers()
"""Those of this process."""
