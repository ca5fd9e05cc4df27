"""The one wrapper around torch's loader iterators that have workers, and who listens to it."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_loaders

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
