"""Notices a data set that the script changes while workers of ours read it.

They have the copy that they were started with, and read ahead: what the script changes during an
epoch would have reached the batches that are left of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpurun.identity_map import IdentityMap
from gpurun.knobs.loading.applied.loader_iterators import on_reading
from gpurun.knobs.loading.dataset_state import dataset_state
from gpurun.knobs.loading.marked_arguments import MarkedInt

CHANGED = "the script changes its data set during an epoch, which its workers did not see"


def watch_datasets(revoked: Callable[[str], None]) -> None:
    """Compare the data set of loaders with a `MarkedInt` of workers with what it was like when the
    epoch began: at its end, and before its batches 2, 4, 8, ... since it may be left early."""
    begun: IdentityMap[int | None] = IdentityMap()

    def compare(iterator: Any, error: BaseException | None) -> None:
        if not isinstance(iterator._num_workers, MarkedInt):
            return
        read = iterator._num_yielded
        if error is None and read == 0:
            begun[iterator] = _state(iterator)
        elif isinstance(error, StopIteration) or (error is None and (read + 1).bit_count() == 1):
            before, now = begun.get(iterator), _state(iterator)
            if None not in (before, now) and before != now:
                revoked(CHANGED)

    on_reading(compare)


def _state(iterator: Any) -> int | None:
    return dataset_state(iterator._dataset, iterator._collate_fn)
