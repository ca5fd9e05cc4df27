"""Private parts of torch's DataLoader iterators that gpurun reads or replaces, and their workers.

A turn of a live pair stops the workers of those that are alive.
"""

from __future__ import annotations

import os
import signal
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, cast

from gpurun.runtime.observe.step_clock import LoaderState

STREAM = 1
"""`_dataset_kind` of an iterator over an `IterableDataset`; 0 is one over a map-style data set."""


class LoaderIterator(Protocol):
    """`torch.utils.data.dataloader._BaseDataLoaderIter`, the same from torch 2.4 on."""

    _auto_collation: bool
    _base_seed: int
    _collate_fn: Callable[[Any], Any]
    _dataset_kind: int
    _index_sampler: Any
    _next_data: Callable[[], Any]

    _gpurun_state: LoaderState | None
    """Our own: the state of the loader."""
    _gpurun_indices: deque[Any] | None
    """Our own: the indices of the batches that are read ahead."""


class WorkersIterator(LoaderIterator, Protocol):
    """`torch.utils.data.dataloader._MultiProcessingDataLoaderIter`."""

    _num_workers: int
    _workers: list[Any]


class WorkerProcesses:
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


WORKERS = WorkerProcesses()
"""Those of this process."""
