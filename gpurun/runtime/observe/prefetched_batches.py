"""Counts the batches that loader workers have ready, and the passes of training loaders.

Workers prepare batches ahead of the training process. A turn of a live pair that begins with more
ready batches than it ends with has not measured the workers.
"""

from __future__ import annotations

import os
import signal
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from gpurun.runtime.observe.torch_loader_internals import LoaderIterator, WorkersIterator


@dataclass(frozen=True)
class PrefetchLevel:
    """The ready batches at one moment, of all loaders with workers.

    `taken`: batches handed out in this pass. `ready`: those made and not handed out. `ending`: a
    loader nears the end of its pass and asks its workers for less. `ahead`: each loader has more of
    them ready than its workers deliver at once.
    """

    taken: int
    ready: int
    workers: int
    ending: bool
    ahead: bool = False


EMPTY = PrefetchLevel(0, 0, 0, False)


class PrefetchedBatches:
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

    def level(self) -> PrefetchLevel:
        """The stock of batches that is ready now."""
        levels = [_level(iterator) for iterator in self._alive()]
        return PrefetchLevel(
            sum(level.taken for level in levels),
            sum(level.ready for level in levels),
            sum(level.workers for level in levels),
            any(level.ending for level in levels),
            bool(levels) and all(level.ahead for level in levels),
        )

    def stop_workers(self) -> list[int]:
        """Stop every worker at once, before it prepares more; return the stopped processes."""
        pids = [worker.pid for iterator in self._alive() for worker in iterator._workers]
        send(pids, signal.SIGSTOP)
        return pids

    def _alive(self) -> list[WorkersIterator]:
        return [iterator for ref in self._iterators if (iterator := ref()) is not None]


def send(pids: list[int], number: int) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _level(iterator: WorkersIterator) -> PrefetchLevel:
    """The level of an iterator with workers; `EMPTY` for one that is unlike torch's."""
    try:
        under_way = iterator._task_info
        queues = {id(q): q for q in (iterator._data_queue, iterator._worker_result_queue)}
        fetched = sum(len(task) == 2 for task in under_way.values())
        ready = fetched + sum(queue.qsize() for queue in queues.values())
        workers = iterator._num_workers
        capacity = iterator._prefetch_factor * workers
    except (AttributeError, NotImplementedError, TypeError):
        return EMPTY
    if not under_way:  # its pass is over
        return EMPTY
    ending = len(under_way) < capacity
    late = fetched > 0 and len(under_way.get(iterator._rcvd_idx, ())) == 1  # later ones came first
    ahead = ready > workers and not late
    return PrefetchLevel(iterator._rcvd_idx, ready, workers, ending, ahead)


PREFETCHED = PrefetchedBatches()
"""The prefetched batches of this process."""
