"""The end of a script does not wait for loader workers that nobody reads any more.

Until 2.12, torch waits at exit for each worker of a loader that pins its batches and keeps its
workers, 5 s each, without asking them to end. From then on it shuts such loaders down, as here.
"""

from __future__ import annotations

import atexit
import functools
import os
import weakref
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_loaders

from gpurun.records.frames import transparent

Loader = DataLoader[Any]


@functools.cache
def end_workers_at_exit() -> None:
    """Shut down the loaders that are still open when the script ends, workers and pinning."""
    iterators: Any = torch_loaders._MultiProcessingDataLoaderIter
    if not hasattr(iterators, "_clean_up_worker"):
        return
    original = iterators.__init__

    @functools.wraps(original)
    @transparent
    def __init__(iterator: Any, loader: Loader) -> None:
        original(iterator, loader)
        if iterator._persistent_workers and iterator._pin_memory:
            # registered after torch's own wait, so called before it
            atexit.register(_shut_down, weakref.ref(iterator), os.getpid())

    iterators.__init__ = __init__


def _shut_down(reading: weakref.ref[Any], owner: int) -> None:
    iterator = reading()
    if iterator is not None and os.getpid() == owner:
        iterator._shutdown_workers()
