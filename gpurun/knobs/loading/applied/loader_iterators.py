"""The one wrapper around torch's loader iterators that have workers, who listens to it, and how the
workers that gpurun adds start and end.

Without workers, torch asks the sampler when the first batch is read; with workers, when the loader
is opened. A shuffle draws its seed then. If the script opens another loader in between (`zip`,
`cycle`), or draws, all would get other numbers. So workers of ours wait for the first batch, too.

They take no notice of SIGTERM, by which torch and multiprocessing end workers that do not end by
themselves. So here they are killed instead, at once.
"""

from __future__ import annotations

import functools
import os
import signal
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_loaders
from torch.utils.data._utils import signal_handling

from gpurun.knobs.loading.added_workers import (
    MARK,
    SENT_TO_ALL,
    AddedWorkers,
    MarkedInt,
    settings_of_children,
)
from gpurun.knobs.loading.loader_fitness import start_method
from gpurun.records.frames import drop_frame, transparent

Loader = DataLoader[Any]
_iterators: Any = torch_loaders._MultiProcessingDataLoaderIter
_opening: list[Callable[[Any, Loader, ExitStack], None]] = []
_reading: list[Callable[[Any, BaseException | None], None]] = []
_waited_for: weakref.WeakSet[Any] = weakref.WeakSet()
"""Iterators of this process for whose workers torch may wait at exit."""


def on_opening(listener: Callable[[Any, Loader, ExitStack], None]) -> None:
    """Call this with an iterator whose workers are about to start, its loader, and a stack for what
    is to be called once they did or could not."""
    _wrap()
    _opening.append(listener)


def on_reading(listener: Callable[[Any, BaseException | None], None]) -> None:
    """Call this with an iterator before each batch (None), and with the error that came in place of
    one: StopIteration at the end of an epoch."""
    _wrap()
    _reading.append(listener)


@functools.cache
def end_workers_at_exit() -> None:
    """Shut down the loaders that are still open when the script ends, workers and pinning.

    Until 2.12, torch waits at exit for each worker of a loader that pins its batches and keeps its
    workers, 5 s each, without asking them to end. From then on it shuts such loaders down, as here.
    """
    wait = getattr(_iterators, "_clean_up_worker", None)
    if wait is None:
        return

    def _clean_up_worker(worker: Any) -> None:
        while _waited_for:
            _waited_for.pop()._shutdown_workers()
        wait(worker)

    _iterators._clean_up_worker = staticmethod(_clean_up_worker)
    os.register_at_fork(after_in_child=_waited_for.clear)
    on_opening(_wait_for)


def _wait_for(iterator: Any, loader: Loader, afterwards: ExitStack) -> None:
    if loader.persistent_workers and loader.pin_memory:
        _waited_for.add(iterator)


@functools.cache
def _wrap() -> None:
    open_workers, next_data = _iterators.__init__, _iterators._next_data

    @functools.wraps(open_workers)
    @transparent
    def __init__(iterator: Any, loader: Loader) -> None:
        with ExitStack() as afterwards:
            for listener in _opening:
                listener(iterator, loader, afterwards)
            open_workers(iterator, loader)

    @functools.wraps(next_data)
    def _next_data(iterator: Any) -> Any:
        try:
            for listener in _reading:
                listener(iterator, None)
            return next_data(iterator)
        except BaseException as error:
            for listener in _reading:
                listener(iterator, error)
            drop_frame(error)
            raise

    _iterators.__init__, _iterators._next_data = __init__, _next_data


END_SECONDS = 0.1
"""A worker that was killed is gone after so long."""


def start_apart(iterator: Any, loader: Any, afterwards: ExitStack) -> None:
    """Have the workers of loaders with a `MarkedInt` of them keep apart (see `added_workers`)."""
    if isinstance(loader.num_workers, MarkedInt):
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _waiting(loader))
        afterwards.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
        afterwards.callback(_Ends, iterator)
        if isinstance(loader.num_workers, AddedWorkers):
            iterator._try_put_index = _not_yet
        settings_of_children()[MARK] = True
        afterwards.callback(settings_of_children().pop, MARK, None)


@transparent
def sample_late(iterator: Any, error: BaseException | None) -> None:
    """Send out an epoch's first indices when its first batch is read, not before."""
    if isinstance(error, StopIteration) and isinstance(iterator._num_workers, AddedWorkers):
        iterator._try_put_index = _not_yet  # the workers may live on
    elif error is None and vars(iterator).pop("_try_put_index", None) is not None:
        for _ in range(iterator._prefetch_factor * iterator._num_workers):
            iterator._try_put_index()


def _not_yet() -> None:
    """In place of `_try_put_index` while torch opens a loader."""


def _waiting(loader: Any) -> frozenset[signal.Signals]:
    """Signals that wait while workers start: a forked one would answer them until it is ready.

    A process that python starts anew takes seconds, for which Ctrl-C must not wait.
    """
    method = start_method({"multiprocessing_context": loader.multiprocessing_context})
    return SENT_TO_ALL if method == "fork" else frozenset()


class _Ends:
    """How the added workers of one iterator end. Nothing is held here: it would stay open."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = weakref.ref(iterator)
        self._until: float | None = None
        for worker in getattr(iterator, "_workers", ()):
            worker.join = functools.partial(self._join, weakref.ref(worker))
            popen = worker._popen
            popen.terminate = functools.partial(self._kill, weakref.ref(popen))

    @transparent
    def _join(self, worker: Callable[[], Any], timeout: float | None = None) -> None:
        """Wait for all workers together as long as torch waits for each of them."""
        if timeout is not None:
            now = time.monotonic()
            self._until = now + timeout if self._until is None else self._until
            timeout = max(self._until - now, END_SECONDS)
        BaseProcess.join(worker(), timeout)

    def _kill(self, popen: Callable[[], Any]) -> None:
        iterator = self._iterator()
        if iterator is not None and iterator._worker_pids_set:
            # torch would raise an error about a worker that was killed
            iterator._worker_pids_set = False
            torchs_own: Any = signal_handling
            torchs_own._remove_worker_pids(id(iterator))
        popen().kill()
