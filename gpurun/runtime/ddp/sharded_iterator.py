"""The private parts of DataLoader iterators that the sharding of loaders reads or replaces."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from gpurun.runtime.ddp.batch_shards import BatchShard
from gpurun.runtime.ddp.loader_roles import LoaderPass
from gpurun.runtime.observe.torch_loader_internals import LoaderIterator


class ShardedIterator(LoaderIterator, Protocol):
    """An iterator of torch with what a rank remembers of it."""

    _gpurun_shards: deque[BatchShard] | None
    """The shards of the batches that are read ahead; None for a loader that is not sharded."""
    _gpurun_pass: LoaderPass | None
    """The pass, from which the role of its loader is learned."""
    _gpurun_aligned: bool
    """True if ranks must draw alike while the next batch is sampled."""
    _gpurun_dealt: bool
    """True if a round of whole batches, one a rank, was handed out."""
    _gpurun_handed: int
    """Batches that this rank was handed."""


class StreamFetcher(Protocol):
    """`torch.utils.data._utils.fetch._IterableDatasetFetcher`."""

    collate_fn: Callable[[Any], Any]
    dataset_iter: Iterator[Any]
    drop_last: bool
    ended: bool
