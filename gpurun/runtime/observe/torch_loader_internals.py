"""The private parts of torch's DataLoader iterators that gpurun reads or replaces."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from gpurun.runtime.observe.step_clock import LoaderState

STREAM = 1
"""`_dataset_kind` of an iterator over an `IterableDataset`; 0 is one over a map-style data set."""


class LoaderIterator(Protocol):
    """`torch.utils.data.dataloader._BaseDataLoaderIter`, the same from torch 2.4 on."""

    _auto_collation: bool
    _base_seed: int
    _collate_fn: Callable[[Any], Any]
    _dataset_kind: int
    _index_sampler: Any
    _next_data: Callable[[], Any]

    _gpurun_state: LoaderState | None
    """Our own: the state of the loader."""
    _gpurun_indices: deque[Any] | None
    """Our own: the indices of the batches that are read ahead."""


class WorkersIterator(LoaderIterator, Protocol):
    """`torch.utils.data.dataloader._MultiProcessingDataLoaderIter`."""

    _num_workers: int
    _workers: list[Any]
