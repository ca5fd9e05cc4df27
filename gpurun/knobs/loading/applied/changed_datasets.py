"""Notices a data set that the script changes while workers of ours read it.

They have the copy that they were started with, and read ahead: what the script changes amid an
epoch would have reached the batches that are left of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader as torch_loaders

from gpurun.identity_map import IdentityMap
from gpurun.knobs.loading.dataset_state import dataset_state
from gpurun.knobs.loading.marked_arguments import MarkedInt
from gpurun.records.frames import drop_frame

CHANGED = "the script changes its data set amid an epoch, which workers do not see"


def watch_datasets(revoked: Callable[[str], None]) -> None:
    """Compare the data set at both ends of an epoch of loaders with a `MarkedInt` of workers."""
    iterators: Any = torch_loaders._MultiProcessingDataLoaderIter
    original = iterators._next_data
    begun: IdentityMap[int | None] = IdentityMap()

    @functools.wraps(original)
    def _next_data(iterator: Any) -> Any:
        if isinstance(iterator._num_workers, MarkedInt) and begun.get(iterator) is None:
            begun[iterator] = _state(iterator)
        try:
            return original(iterator)
        except BaseException as error:
            before = begun.get(iterator)
            if isinstance(error, StopIteration) and before is not None:
                begun[iterator] = None
                if before != _state(iterator):
                    revoked(CHANGED)
            drop_frame(error)
            raise

    iterators._next_data = _next_data


def _state(iterator: Any) -> int:
    return dataset_state(iterator._dataset, iterator._collate_fn)
