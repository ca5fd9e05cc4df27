"""The shard of a batch that a rank computes, and the weight of its loss."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

LEAST = 2
"""Fewest samples for a rank of a batch that is smaller than usual: layers that normalise over the
batch refuse a single one."""


@dataclass(frozen=True)
class BatchShard:
    """`own` of the `total` samples of a batch that all ranks share.

    `repeated`: every rank has all of them, so each gradient is already the batch's gradient.
    `order`: a hash of the samples of the whole batch, in their order.
    """

    own: int
    total: int
    repeated: bool = False
    order: int = field(default=0, compare=False)

    def weight(self, ranks: int) -> float:
        """The factor of this rank's mean loss. With it the average of the ranks' losses is the mean
        over all samples.
        """
        return 1.0 if self.repeated else ranks * self.own / self.total


WHOLE_BATCH = BatchShard(1, 1, repeated=True)


def shard_of(
    indices: Sequence[Any], rank: int, size: int, usual: int | None = None
) -> tuple[Sequence[Any], BatchShard]:
    """The rank's indices of a batch, every `size`-th of them, and the shard that they form.

    Shares differ by one sample at most. Every rank has all of two kinds of batches, because each
    must take part in each step: batches with less than a sample a rank, and last batches of an
    epoch with less than `LEAST` a rank (fewer samples than `usual`).
    """
    total = len(indices)
    last = usual is not None and total < usual
    if total < size * (LEAST if last else 1):
        return indices, BatchShard(total, total, repeated=True)
    own = indices[rank::size]
    return own, BatchShard(len(own), total)


def ordered(shard: BatchShard, indices: Iterable[Any]) -> BatchShard:
    """The shard with the order of the batch's indices, if all ranks can compute the same hash."""
    try:
        return replace(shard, order=hash(tuple(map(operator.index, indices))))
    except TypeError:  # texts, or batches: their hashes are a process's own
        text = repr(indices)
        return shard if " at 0x" in text else replace(shard, order=zlib.crc32(text.encode()))


class StreamShard(list[Any]):
    """The places of a batch of a stream, on their way to its reader: see `read_shard`."""

    def __init__(self, places: Sequence[Any], rank: int, size: int, whole: bool) -> None:
        super().__init__(places)
        self.rank, self.size, self.whole = rank, size, whole

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamShard, (list(self), self.rank, self.size, self.whole)


class RepeatedBatch:
    """A collated batch that every rank has whole, on its way out of a loader or worker."""

    def __init__(self, batch: object) -> None:
        self.batch = batch

    def pin_memory(self, *device: object) -> RepeatedBatch:
        """Called by a loader that pins memory."""
        return RepeatedBatch(pin_memory(self.batch, *device))


def read_shard(
    samples: Iterable[Any], places: StreamShard, drop_last: bool
) -> tuple[list[Any], bool] | None:
    """The rank's share of the next batch of a stream, and whether all ranks have it; None at the
    end.

    Every rank reads the whole stream, so that all end after the same batch. `places.whole`: a batch
    a rank, in turn; else each takes its part of one batch. Every rank has all of a last batch that
    is shorter than the others.
    """
    read: list[Any] = []
    wanted = len(places) * (places.size if places.whole else 1)
    for sample in samples:
        read.append(sample)
        if len(read) == wanted:
            break
    if places.whole:
        begin = places.rank * len(places)
        return (read[begin : begin + len(places)], False) if len(read) == wanted else None
    if len(read) == wanted:
        return read[places.rank :: places.size], False
    return None if drop_last or not read else (read, True)
