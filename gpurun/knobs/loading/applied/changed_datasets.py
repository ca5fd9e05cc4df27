"""Notices a data set that the script changes while workers of ours read it.

They have the copy that they were started with, and read ahead: what the script changes during an
epoch would have reached the batches that are left of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import dataloader as torch_loaders

from gpurun.identity_map import IdentityMap
from gpurun.knobs.loading.dataset_state import dataset_state
from gpurun.knobs.loading.marked_arguments import MarkedInt
from gpurun.records.frames import drop_frame

CHANGED = "the script changes its data set during an epoch, which its workers did not see"


@dataclass
class Epoch:
    """What the data set was like when an epoch began, and the batches of it that were read."""

    state: int | None
    batches: int = 0


def watch_datasets(revoked: Callable[[str], None]) -> None:
    """Compare the data set of loaders with a `MarkedInt` of workers with what it was like when the
    epoch began: at its end, and before its batches 2, 4, 8, ... since it may be left early."""
    iterators: Any = torch_loaders._MultiProcessingDataLoaderIter
    original = iterators._next_data
    epochs: IdentityMap[Epoch] = IdentityMap()

    def compare(iterator: Any, epoch: Epoch) -> None:
        state = _state(iterator)
        if None not in (state, epoch.state) and state != epoch.state:
            revoked(CHANGED)

    @functools.wraps(original)
    def _next_data(iterator: Any) -> Any:
        if not isinstance(iterator._num_workers, MarkedInt):
            epoch = None
        elif (epoch := epochs.get(iterator)) is None or iterator._num_yielded == 0:
            epoch = epochs[iterator] = Epoch(_state(iterator))
        try:
            if epoch is not None:
                epoch.batches += 1
                if epoch.batches.bit_count() == 1 and epoch.batches > 1:
                    compare(iterator, epoch)
            return original(iterator)
        except BaseException as error:
            if isinstance(error, StopIteration) and epoch is not None:
                compare(iterator, epoch)
            drop_frame(error)
            raise

    iterators._next_data = _next_data


def _state(iterator: Any) -> int | None:
    return dataset_state(iterator._dataset, iterator._collate_fn)
