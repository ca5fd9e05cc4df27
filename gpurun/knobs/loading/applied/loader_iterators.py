"""The one wrapper around torch's loader iterators that have workers, and who listens to it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_loaders

from gpurun.records.frames import drop_frame, transparent

Loader = DataLoader[Any]
Opening = Callable[[Any, Loader, ExitStack], None]
"""Called with an iterator whose workers are about to start, its loader, and the stack of calls that
follow once they did or could not."""
Reading = Callable[[Any, BaseException | None], None]
"""Called with an iterator before each batch (None), and with the error that came in its place: a
StopIteration at the end of an epoch."""

_opening: list[Opening] = []
_reading: list[Reading] = []


def listen(opening: Opening | None = None, reading: Reading | None = None) -> None:
    """Call these from now on, in the order in which they came."""
    _wrap()
    _opening.extend(filter(None, (opening,)))
    _reading.extend(filter(None, (reading,)))


@functools.cache
def _wrap() -> None:
    iterators: Any = torch_loaders._MultiProcessingDataLoaderIter
    open_workers, next_data = iterators.__init__, iterators._next_data

    @functools.wraps(open_workers)
    @transparent
    def __init__(iterator: Any, loader: Loader) -> None:
        with ExitStack() as afterwards:
            for listener in _opening:
                listener(iterator, loader, afterwards)
            open_workers(iterator, loader)

    @functools.wraps(next_data)
    def _next_data(iterator: Any) -> Any:
        for listener in _reading:
            listener(iterator, None)
        try:
            return next_data(iterator)
        except BaseException as error:
            for listener in _reading:
                listener(iterator, error)
            drop_frame(error)
            raise

    iterators.__init__, iterators._next_data = __init__, _next_data
