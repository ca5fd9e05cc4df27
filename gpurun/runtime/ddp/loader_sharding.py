"""Training loaders give each rank its shard of a batch; others give every rank the whole batch.

The shard is taken where an iterator asks the batch sampler for indices, so that the script's own
sampler, order and number of batches stay. All ranks draw the same order.

`loader_roles` learns from a pass whether a loader trains. Before its first pass the model's mode
decides, and whether gradients are on.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, get_worker_info

from gpurun.records.messages.traits import feeds_training
from gpurun.records.spec import Share
from gpurun.runtime.core.patching import replace, stands_in
from gpurun.runtime.ddp.batch_shards import (
    WHOLE_BATCH,
    BatchShard,
    RepeatedBatch,
    StreamShard,
    ordered,
    read_shard,
    shard_of,
)
from gpurun.runtime.ddp.hidden_ddp import HiddenDDP
from gpurun.runtime.ddp.loader_roles import LoaderPass, LoaderRoles
from gpurun.runtime.ddp.rank_info import RankInfo, or_stop_rank, stop_rank
from gpurun.runtime.ddp.rank_rng import RankRNG
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.step_clock import CLOCK
from gpurun.runtime.observe.torch_loader_internals import STREAM
from gpurun.runtime.observe.watched_loaders import LOADERS

LATELY = 8
"""The most batches that a script holds at once."""
ORDERS = 2**48
"""The number of different orders; a float can hold each of them."""


@dataclass
class Reading:
    """What a rank remembers of an iterator of torch, in its `_gpurun_reading`."""

    shards: deque[BatchShard] | None = None
    """The shards of the batches that are read ahead; None for a loader that is not sharded."""
    loader_pass: LoaderPass | None = None
    """The pass, from which the role of its loader is learned."""
    aligned: bool = False
    """True if ranks must draw alike while the next batch is sampled."""
    dealt: bool = False
    """True if a round of whole batches, one a rank, was handed out."""
    handed: int = 0
    """Batches that this rank was handed."""


class LoaderSharding:
    """Shards the loaders of one rank."""

    def __init__(self, share: Share, rank_info: RankInfo, rng: RankRNG, ddp: HiddenDDP) -> None:
        self.order = 0
        """A hash of the samples that all ranks together were handed, in their order."""
        self._handed: deque[BatchShard] = deque(maxlen=LATELY)
        """The parts of the batches that were handed out lately."""
        self._last: BatchShard | None = None
        """The part of a batch that was handed out last, None before any."""
        self._share = share
        self._rank_info = rank_info
        self._rng = rng
        self._active = ddp.active
        self._ddp = ddp
        self._local = threading.local()
        self._shuffled = False
        """True if a loader was seen that draws its order."""
        self._roles = LoaderRoles(strict=share is Share.GLOBAL)

    def install(self) -> None:
        """Stand between DataLoaders and their samplers."""
        iterator: Any = torch.utils.data.dataloader._BaseDataLoaderIter
        iterator._gpurun_reading = Reading()  # of one that is made past the loader
        self._ddp.on_call.append(lambda: self._roles.called(_in_training()))
        CLOCK.before_step.append(or_stop_rank("loaders of ranks", self._stepped))
        replace(DataLoader, "__init__", self._watch_built)
        replace(DataLoader, "__iter__", self._watch_iter)
        replace(iterator, "__init__", self._watch_init)
        replace(iterator, "_reset", self._watch_reset)
        replace(iterator, "_next_index", self._watch_next_index)
        replace(iterator, "__next__", self._watch_next)
        replace(torch.utils.data._utils.fetch._IterableDatasetFetcher, "fetch", self._watch_fetch)
        if self._share is Share.LOCAL:
            replace(DataLoader, "__len__", self._watch_len)

    def trains(self, loader: DataLoader[Any]) -> bool:
        """True if a loader that is now opened feeds the training, as far as is known."""
        if not torch.is_grad_enabled():
            return False
        if LOADERS.training_keys:
            return feeds_training(LOADERS.key_of(loader), LOADERS.training_keys)
        in_training = _in_training()
        ordered = not self._draws_order(loader)
        known = self._roles.known(loader, ordered, in_training)
        if known is not None:
            return known
        # a loader in order beside one that is shuffled is there to evaluate
        return in_training and not (ordered and self._shuffled)

    @property
    def shard(self) -> BatchShard | None:
        """This rank's shard of the current batch; None if no loader feeds the training."""
        if self._roles.repeated(_in_training()):
            return WHOLE_BATCH
        if self._last is None or self._last is WHOLE_BATCH:
            return self._last
        # of batches that were read ahead, or of several loaders, the one that the model was given
        rows = self._ddp.called_with
        return next((shard for shard in reversed(self._handed) if shard.own == rows), self._last)

    def went_back(self) -> None:
        """A backward pass is over."""
        self._roles.went_back(_in_training())
        self._ddp.called_with = None

    def finish(self) -> None:
        """The script is over."""
        self._roles.finish()

    def _stepped(self, optimizer: Optimizer) -> None:
        self._roles.stepped(_in_training())

    def _draws_order(self, loader: DataLoader[Any]) -> bool:
        """True if a loader may shuffle; a batch sampler of the script's own may."""
        own = type(loader.batch_sampler) not in (BatchSampler, type(None))
        sampler = getattr(loader.batch_sampler, "sampler", None if own else loader.sampler)
        return not isinstance(sampler, SequentialSampler)

    @stands_in
    def _watch_built(
        self, original: Callable[..., None], loader: DataLoader[Any], *args: Any, **kwargs: Any
    ) -> None:
        original(loader, *args, **kwargs)
        self._shuffled = self._shuffled or self._draws_order(loader)

    @stands_in
    def _watch_iter(self, original: Callable[..., Any], loader: DataLoader[Any]) -> Any:
        if not self._active():
            return original(loader)
        shards = deque[BatchShard]() if self.trains(loader) else None
        self._local.opened = shards, self._new_pass(loader, shards is not None)
        self._rng.draw_alike()
        try:
            return original(loader)
        finally:
            self._local.opened = None, None

    @stands_in
    def _watch_init(self, original: Callable[..., None], iterator: Any, loader: object) -> None:
        self._open(iterator)
        shared = iterator._gpurun_reading.shards is not None
        if shared:
            # `break` frees it: what follows is no step any more
            weakref.finalize(iterator, self._abandoned).atexit = False
        original(iterator, loader)
        if shared and iterator._dataset_kind != STREAM:
            # workers augment samples of their own: they must not draw a peer's numbers; of a
            # stream every rank reads the whole, in the same order
            iterator._base_seed = self._rng.own_seed(iterator._base_seed)

    def _abandoned(self) -> None:
        """An iterator is gone."""
        if _in_script():
            self._rng.draw_alike()

    @stands_in
    def _watch_reset(
        self, original: Callable[..., None], iterator: Any, *args: object, **kwargs: object
    ) -> None:
        self._open(iterator)
        original(iterator, *args, **kwargs)

    def _open(self, iterator: Any) -> None:
        shards, loader_pass = getattr(self._local, "opened", (None, None))
        iterator._gpurun_reading = Reading(shards, loader_pass, aligned=self._active())

    def _new_pass(self, loader: DataLoader[Any], shared: bool) -> LoaderPass | None:
        """A new pass over a loader; None if the loader cannot train, or is known to."""
        if LOADERS.training_keys or not torch.is_grad_enabled():
            return None
        return self._roles.opened(loader, not self._draws_order(loader), _in_training(), shared)

    @stands_in
    def _watch_next_index(self, original: Callable[..., Any], iterator: Any) -> Any:
        reading = iterator._gpurun_reading
        alike = self._rng.alike_inside() if reading.aligned else nullcontext()
        if reading.aligned:
            reading.aligned = _draws_later(iterator._index_sampler)
        with alike:
            if reading.shards is None:
                return original(iterator)
            return self._shared(iterator, reading, original)

    def _shared(self, iterator: Any, reading: Reading, original: Callable[..., Any]) -> Any:
        """The indices of this rank's share of the next batch."""
        assert reading.shards is not None
        rank, size = self._rank_info.rank, self._rank_info.world_size
        whole = self._share is Share.LOCAL
        if iterator._dataset_kind == STREAM:  # a stream: its reader takes the share
            places = original(iterator)
            if not iterator._auto_collation:
                return self._refuse(reading, "a stream of whole batches") if not whole else places
            if not whole and len(places) < size:
                return self._refuse(reading, f"a stream in batches of {len(places)}")
            count = len(places) if whole else len(places[rank::size])
            reading.shards.append(BatchShard(count, len(places)))
            return StreamShard(places, rank, size, whole)
        if whole:
            return self._in_turn(iterator, reading, original)
        indices = original(iterator)
        if not iterator._auto_collation:
            return self._refuse(reading, "a loader without a batch size")
        usual = getattr(iterator._index_sampler, "batch_size", None)
        try:
            own, shard = shard_of(indices, rank, size, usual if isinstance(usual, int) else None)
        except (TypeError, IndexError, KeyError):
            return self._refuse(reading, f"a batch sampler that yields {type(indices).__name__}s")
        reading.shards.append(ordered(shard, indices))
        return own

    def _in_turn(self, iterator: Any, reading: Reading, original: Callable[..., Any]) -> Any:
        """This rank's one of the next batches; an incomplete round of batches ends the epoch."""
        batches: list[Any] = []
        try:
            while len(batches) < self._rank_info.world_size:
                batches.append(original(iterator))
        except StopIteration:
            if batches and not reading.dealt:
                stop_rank(
                    f"an epoch has {len(batches)} of its batches for {self._rank_info.world_size} "
                    "ranks, and each rank takes whole batches",
                    "take a smaller batch or more data; --strong gives each rank a part of a batch",
                )
            raise
        reading.dealt = True
        assert reading.shards is not None
        reading.shards.append(ordered(BatchShard(1, 1), batches))
        return batches[self._rank_info.rank]

    def _refuse(self, reading: Reading, what: str) -> NoReturn:
        loader_pass = reading.loader_pass
        where = f" ({loader_pass.where})" if loader_pass is not None and loader_pass.where else ""
        stop_rank(
            f"the training reads {what}{where}: no share of a batch can be given to each rank",
            "build the loader with a batch size of at least a sample for each rank, or run it "
            "without --ddp",
        )

    @stands_in
    def _watch_next(self, original: Callable[..., Any], iterator: Any) -> Any:
        shards = iterator._gpurun_reading.shards
        try:
            if shards is not None:
                self._rng.draw_apart()
            batch = original(iterator)
        except BaseException as error:
            if shards is not None:
                self._rng.draw_alike()
            loader_pass = iterator._gpurun_reading.loader_pass
            if isinstance(error, StopIteration) and _in_script() and loader_pass is not None:
                self._roles.ended(loader_pass)
            raise
        reading = iterator._gpurun_reading
        if reading.loader_pass is not None and torch.is_grad_enabled() and _in_script():
            self._roles.handed(reading.loader_pass)
        if shards:
            self._last = shards.popleft()
            self._handed.append(self._last)
            self._ddp.fed = True
            reading.handed += 1
            self._ddp.passes.left = self._left(iterator)
            if _in_script():
                self.order = hash((self.order, self._last.order)) % ORDERS
        if isinstance(batch, RepeatedBatch):
            self._last = WHOLE_BATCH
            return batch.batch
        return batch

    def _left(self, iterator: Any) -> int | None:
        """Batches that an iterator has left for this rank; None if its length is unknown."""
        try:
            batches = len(iterator._index_sampler)
        except (TypeError, NotImplementedError):
            return None
        if self._share is Share.LOCAL:
            batches //= self._rank_info.world_size
        return batches - int(iterator._gpurun_reading.handed)

    @stands_in
    def _watch_fetch(self, original: Callable[..., Any], fetcher: Any, places: object) -> Any:
        if not isinstance(places, StreamShard):
            return original(fetcher, places)
        found = None
        if not fetcher.ended:
            # each rank reads the whole stream, which may draw its order
            alike = self._rng.alike_inside() if get_worker_info() is None else nullcontext()
            with alike:
                found = read_shard(fetcher.dataset_iter, places, fetcher.drop_last)
        if found is None:
            fetcher.ended = True
            raise StopIteration
        share, repeated = found
        batch = fetcher.collate_fn(share)
        return RepeatedBatch(batch) if repeated else batch

    @stands_in
    def _watch_len(self, original: Callable[..., int], loader: Any) -> int:
        batches = original(loader)
        if not self._active() or loader._dataset_kind == STREAM or not self.trains(loader):
            return batches
        # with fewer batches than ranks the first one stops the rank: see `_in_turn`
        return max(batches // self._rank_info.world_size, min(batches, 1))


def _in_script() -> bool:
    """Not in a thread that reads ahead: how far it is differs between ranks."""
    return threading.get_ident() == CLOCK.thread


def _in_training() -> bool:
    """True if the model is in training mode, as far as there is one."""
    roots = ROOTS.modules()
    return not roots or any(root.training for root in roots)


def _draws_later(sampler: object) -> bool:
    """True if a batch sampler may draw after its first batch: torch's own seed themselves then."""
    samplers = (sampler, getattr(sampler, "sampler", sampler))
    return not all(type(one).__module__ == "torch.utils.data.sampler" for one in samplers)
