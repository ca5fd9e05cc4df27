"""Notices a data set that the script changes while workers of ours read it.

They have the copy that they were started with, and read ahead: what the script changes during an
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

CHANGED = "the script changes its data set during an epoch, which its workers did not see"


def watch_datasets(revoked: Callable[[str], None]) -> None:
    """Compare the data set of loaders with a `MarkedInt` of workers with what it was like when the
    epoch began: at its end, and before its batches 2, 4, 8, ... since it may be left early."""
    iterators: Any = torch_loaders._MultiProcessingDataLoaderIter
    original = iterators._next_data
    begun: IdentityMap[int | None] = IdentityMap()

    def compare(iterator: Any) -> None:
        before, now = begun.get(iterator), _state(iterator)
        if None not in (before, now) and before != now:
            revoked(CHANGED)

    @functools.wraps(original)
    def _next_data(iterator: Any) -> Any:
        ours, read = isinstance(iterator._num_workers, MarkedInt), iterator._num_yielded
        if ours and read == 0:
            begun[iterator] = _state(iterator)
        elif ours and (read + 1).bit_count() == 1:
            compare(iterator)
        try:
            return original(iterator)
        except BaseException as error:
            if ours and isinstance(error, StopIteration):
                compare(iterator)
            drop_frame(error)
            raise

    iterators._next_data = _next_data


def _state(iterator: Any) -> int | None:
    return dataset_state(iterator._dataset, iterator._collate_fn)
