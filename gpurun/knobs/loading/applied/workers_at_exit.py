"""The end of a script does not wait for loader workers that nobody reads any more.

Until 2.12, torch waits at exit for each worker of a loader that pins its batches and keeps its
workers, 5 s each, without asking them to end. From then on it shuts such loaders down, as here.
"""

from __future__ import annotations

import functools
import os
import weakref
from contextlib import ExitStack
from typing import Any

from torch.utils.data import dataloader as torch_loaders

from gpurun.knobs.loading.applied.loader_iterators import Loader, listen

_waited_for: weakref.WeakSet[Any] = weakref.WeakSet()
"""Iterators of this process for whose workers torch waits at exit."""


@functools.cache
def end_workers_at_exit() -> None:
    """Shut down the loaders that are still open when the script ends, workers and pinning."""
    iterators: Any = torch_loaders._MultiProcessingDataLoaderIter
    wait = getattr(iterators, "_clean_up_worker", None)
    if wait is None:
        return

    @functools.wraps(wait)
    def _clean_up_worker(worker: Any) -> None:
        while _waited_for:
            _waited_for.pop()._shutdown_workers()
        wait(worker)

    iterators._clean_up_worker = staticmethod(_clean_up_worker)
    os.register_at_fork(after_in_child=_waited_for.clear)
    listen(opening=_opening)


def _opening(iterator: Any, loader: Loader, afterwards: ExitStack) -> None:
    if loader.persistent_workers and loader.pin_memory:
        _waited_for.add(iterator)
