"""Training loaders hand out a part of each batch: every sample is fetched, some are collated.

So the data set draws the same random numbers whichever part is computed. The rules of ranks
decide which loaders train, and which batches ranks could not share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from gpurun.records.spec import ProbeSpec, Share
from gpurun.runtime.ddp.hidden_ddp import HiddenDDP
from gpurun.runtime.ddp.loader_sharding import LoaderSharding
from gpurun.runtime.ddp.rank_info import RankInfo
from gpurun.runtime.ddp.rank_rng import RankRNG
from gpurun.runtime.ddp.sharded_iterator import ShardedIterator


class PartialBatch:
    """A collated part of a batch, `own` of its `total` samples, on its way out of a loader."""

    def __init__(self, batch: object, own: int, total: int) -> None:
        self.batch, self.own, self.total = batch, own, total

    def pin_memory(self, *device: object) -> PartialBatch:
        """Called by a loader that pins memory."""
        return PartialBatch(pin_memory(self.batch, *device), self.own, self.total)


class CollatePart:
    """A loader's collate function, for `samples[start::step]`; all of a batch too small for it."""

    def __init__(self, collate: Callable[[Any], Any], start: int, step: int) -> None:
        self.collate, self.start, self.step = collate, start, step

    def __call__(self, samples: Sequence[Any]) -> PartialBatch:
        """Collate them."""
        total = len(samples)
        own = samples if total < self.step else samples[self.start :: self.step]
        return PartialBatch(self.collate(own), len(own), total)


class SingleRankRNG(RankRNG):
    """One process has no ranks to draw apart from."""

    def draw_apart(self) -> None:
        """Nothing changes inside a step."""

    def draw_alike(self) -> None:
        """Nor outside."""


class PartialBatches(LoaderSharding):
    """The loaders of a launch of the probe. `own` of `total`: samples of the current batch.

    `around`: called with the number of a batch, before it is read and when it is handed out.
    """

    def __init__(
        self, probe: ProbeSpec, ddp: HiddenDDP, around: Callable[[int, bool], None]
    ) -> None:
        rank_info = RankInfo(0, probe.ranks)
        super().__init__(Share.GLOBAL, rank_info, SingleRankRNG(0), ddp)
        self.own = self.total = 0
        self.batches = 0
        self.training: set[str] = set()
        """Keys of the loaders whose batches were differentiated."""
        self.missed = False
        """True if one of them was not known to train when it was opened."""
        self._probe = probe
        self._around = around

    def went_back(self) -> None:
        """A backward pass is over."""
        super().went_back()
        for loader_pass in self._roles.at_hand:
            self.training.add(loader_pass.key)
            self.missed = self.missed or not loader_pass.shared

    def _to_read(self, whole: Sequence[Any], share: Sequence[Any]) -> Sequence[Any]:
        return whole

    def _watch_init(self, original: Callable[..., None]) -> Callable[..., None]:
        init = super()._watch_init(original)
        start, step = self._probe.start, self._probe.step

        def __init__(iterator: ShardedIterator, loader: DataLoader[Any]) -> None:
            init(iterator, loader)
            if iterator._gpurun_shards is not None and iterator._auto_collation:
                iterator._collate_fn = CollatePart(iterator._collate_fn, start, step)

        return __init__

    def _watch_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def handed(iterator: ShardedIterator) -> Any:
            shared = iterator._gpurun_shards is not None
            if shared:
                self._around(self.batches, False)
            batch = original(iterator)
            if not isinstance(batch, PartialBatch):
                return batch
            self.own, self.total = batch.own, batch.total
            self._around(self.batches, True)
            self.batches += 1
            return batch.batch

        return super()._watch_next(handed)
