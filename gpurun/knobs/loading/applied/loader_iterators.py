"""The one wrapper around torch's loader iterators that have workers, who listens to it, and how the
workers that gpurun adds start and end.

Without workers, torch asks the sampler when the first batch is read; with workers, when the loader
is opened. A shuffle draws its seed then. If the script opens another loader in between (`zip`,
`cycle`), or draws, all would get other numbers. So workers of ours wait for the first batch, too.
The first batches of a loader are asked for one at a time: see `script_changes`.

They take no notice of SIGTERM, by which torch and multiprocessing end workers that do not end by
themselves. So here they are killed instead, at once.
"""

from __future__ import annotations

import functools
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_loaders
from torch.utils.data._utils import signal_handling

from gpurun.identity_map import IdentityMap
from gpurun.knobs.loading.added_workers import (
    MARK,
    SENT_TO_ALL,
    AddedWorkers,
    MarkedInt,
    mark_children,
)
from gpurun.knobs.loading.loader_fitness import start_method
from gpurun.records.frames import drop_frame, transparent

Loader = DataLoader[Any]
_iterators: Any = torch_loaders._MultiProcessingDataLoaderIter
_opening: list[Callable[[Any, Loader, ExitStack], None]] = []
_reading: list[Callable[[Any, BaseException | None], None]] = []
_handing_out: list[Callable[[Any], None]] = []
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


def on_handing_out(listener: Callable[[Any], None]) -> None:
    """Call this with an iterator once each batch is there, before the script has it."""
    _wrap()
    _handing_out.append(listener)


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
            batch = _load(iterator) if _is_alone(iterator) else next_data(iterator)
            for heard in _handing_out:
                heard(iterator)
            return batch
        except BaseException as error:
            for listener in _reading:
                listener(iterator, error)
            drop_frame(error)
            raise

    _iterators.__init__, _iterators._next_data = __init__, _next_data


LOST_WORKERS: list[Callable[[str], None]] = []
"""Called with the reason where a loader goes on without workers, for each knob that needs them."""
ALONE: IdentityMap[bool] = IdentityMap()
"""Iterators that go on without workers."""
_loaders: IdentityMap[weakref.ref[Loader]] = IdentityMap()
"""The loader of each iterator with added workers. It may be gone."""


def go_on_without_workers(iterator: Any, reason: str) -> None:
    """Once an iterator has handed out what its workers were asked for, it loads in the script's
    process, and so does its loader from the next epoch on."""
    ALONE[iterator] = True
    iterator._try_put_index = _not_yet
    known = _loaders.get(iterator)
    open_without_workers(None if known is None else known(), reason)


def open_without_workers(loader: Loader | None, reason: str) -> None:
    """Have a loader, unless it is gone, load in the script's process whenever it is opened."""
    for revoked in LOST_WORKERS:
        revoked(reason)
    if loader is not None:
        loader.__dict__.update(num_workers=0, prefetch_factor=None, persistent_workers=False)
        loader._iterator = None


def _is_alone(iterator: Any) -> bool:
    return iterator in ALONE and iterator._rcvd_idx == iterator._send_idx


def _load(iterator: Any) -> Any:
    """The next batch as torch loads it without workers, from where the sampler is now."""
    iterator._shutdown_workers()
    kind: Any = torch_loaders._DatasetKind
    iterator._dataset_fetcher = kind.create_fetcher(
        iterator._dataset_kind, iterator._dataset, iterator._auto_collation,
        iterator._collate_fn, iterator._drop_last,
    )  # fmt: skip
    single: Any = torch_loaders._SingleProcessDataLoaderIter
    return single._next_data(iterator)


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
            _loaders[iterator] = weakref.ref(loader)
            _first[loader] = _first[iterator] = _first.get(loader) or iter(range(FIRST_BATCHES))
        mark_children(MARK, afterwards)


FIRST_BATCHES = 3
"""Batches of a loader that are asked for one at a time."""
_first: IdentityMap[Iterator[int]] = IdentityMap()
"""Counts them, for a loader with added workers and all of its iterators."""


@transparent
def sample_late(iterator: Any, error: BaseException | None) -> None:
    """Send out an epoch's first indices when its first batch is read, not before; those of a
    loader's first batches one by one."""
    if isinstance(error, StopIteration) and isinstance(iterator._num_workers, AddedWorkers):
        iterator._try_put_index = _not_yet  # the workers may live on
    elif error is None and "_try_put_index" in vars(iterator) and iterator not in ALONE:
        if next(_first.get(iterator) or iter(()), None) is not None:
            type(iterator)._try_put_index(iterator)
            return
        del iterator._try_put_index
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
