"""Training loaders give each rank its shard of a batch; others give every rank the whole batch.

The shard is taken where an iterator asks the batch sampler for indices, so that the script's own
sampler, order and number of batches stay. All ranks draw the same order.

`loader_roles` learns from a pass whether a loader trains. Before its first pass the model's mode
decides, and whether gradients are on.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NoReturn

import torch
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, get_worker_info

from gpurun.records.frames import drop_frame, transparent
from gpurun.records.messages.traits import feeds_training
from gpurun.records.spec import Share
from gpurun.runtime.core.patching import replace
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
from gpurun.runtime.ddp.sharded_iterator import ShardedIterator, StreamFetcher
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.step_clock import CLOCK
from gpurun.runtime.observe.torch_loader_internals import STREAM
from gpurun.runtime.observe.watched_loaders import LOADERS

LATELY = 8
"""The most batches that a script holds at once."""
ORDERS = 2**48
"""The number of different orders; a float can hold each of them."""


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
        iterator._gpurun_shards, iterator._gpurun_aligned = None, False
        iterator._gpurun_pass, iterator._gpurun_dealt = None, False
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

    def _watch_built(self, original: Callable[..., None]) -> Callable[..., None]:
        @transparent
        def __init__(loader: DataLoader[Any], *args: object, **kwargs: object) -> None:
            original(loader, *args, **kwargs)
            self._shuffled = self._shuffled or self._draws_order(loader)

        return __init__

    def _watch_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @transparent
        def __iter__(loader: DataLoader[Any]) -> Any:
            if not self._active():
                return original(loader)
            self._local.shards = deque() if self.trains(loader) else None
            self._local.loader_pass = self._new_pass(loader)
            self._rng.draw_alike()
            try:
                return original(loader)
            finally:
                self._local.shards = self._local.loader_pass = None

        return __iter__

    def _watch_init(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(iterator: ShardedIterator, loader: DataLoader[Any]) -> None:
            self._open(iterator)
            if iterator._gpurun_shards is not None:
                # `break` frees it: what follows is no step any more
                weakref.finalize(iterator, self._abandoned).atexit = False
            original(iterator, loader)
            if iterator._gpurun_shards is not None and iterator._dataset_kind != STREAM:
                # workers augment samples of their own: they must not draw a peer's numbers; of a
                # stream every rank reads the whole, in the same order
                iterator._base_seed = self._rng.own_seed(iterator._base_seed)

        return __init__

    def _abandoned(self) -> None:
        """An iterator is gone."""
        if _in_script():
            self._rng.draw_alike()

    def _watch_reset(self, original: Callable[..., None]) -> Callable[..., None]:
        def _reset(
            iterator: ShardedIterator, loader: DataLoader[Any], first_iter: bool = False
        ) -> None:
            self._open(iterator)
            original(iterator, loader, first_iter)

        return _reset

    def _open(self, iterator: ShardedIterator) -> None:
        iterator._gpurun_shards = getattr(self._local, "shards", None)
        iterator._gpurun_pass = getattr(self._local, "loader_pass", None)
        iterator._gpurun_aligned = self._active()
        iterator._gpurun_dealt, iterator._gpurun_handed = False, 0

    def _new_pass(self, loader: DataLoader[Any]) -> LoaderPass | None:
        """A new pass over a loader; None if the loader cannot train, or is known to."""
        if LOADERS.training_keys or not torch.is_grad_enabled():
            return None
        shared = self._local.shards is not None
        return self._roles.opened(loader, not self._draws_order(loader), _in_training(), shared)

    def _watch_next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @transparent
        def _next_index(iterator: ShardedIterator) -> Any:
            shards = iterator._gpurun_shards
            take = None
            if shards is not None:
                take = functools.partial(self._shared, iterator, shards, original)
            if not iterator._gpurun_aligned:
                return take() if take is not None else original(iterator)
            iterator._gpurun_aligned = _draws_later(iterator._index_sampler)
            with self._rng.alike_inside():
                return take() if take is not None else original(iterator)

        return _next_index

    def _shared(
        self,
        iterator: ShardedIterator,
        shards: deque[BatchShard],
        original: Callable[..., Any],
    ) -> Any:
        """The indices of this rank's share of the next batch."""
        rank, size = self._rank_info.rank, self._rank_info.world_size
        whole = self._share is Share.LOCAL
        if iterator._dataset_kind == STREAM:  # a stream: its reader takes the share
            places = original(iterator)
            if not iterator._auto_collation:
                return self._refuse(iterator, "a stream of whole batches") if not whole else places
            if not whole and len(places) < size:
                return self._refuse(iterator, f"a stream in batches of {len(places)}")
            count = len(places) if whole else len(places[rank::size])
            shards.append(BatchShard(count, len(places)))
            return StreamShard(places, rank, size, whole)
        if whole:
            return self._in_turn(iterator, shards, original)
        indices = original(iterator)
        if not iterator._auto_collation:
            return self._refuse(iterator, "a loader without a batch size")
        usual = getattr(iterator._index_sampler, "batch_size", None)
        try:
            own, shard = shard_of(indices, rank, size, usual if isinstance(usual, int) else None)
        except (TypeError, IndexError, KeyError):
            return self._refuse(iterator, f"a batch sampler that yields {type(indices).__name__}s")
        shards.append(ordered(shard, indices))
        return own

    def _in_turn(
        self,
        iterator: ShardedIterator,
        shards: deque[BatchShard],
        original: Callable[..., Any],
    ) -> Any:
        """This rank's one of the next batches; an incomplete round of batches ends the epoch."""
        batches: list[Any] = []
        try:
            while len(batches) < self._rank_info.world_size:
                batches.append(original(iterator))
        except StopIteration:
            if batches and not iterator._gpurun_dealt:
                stop_rank(
                    f"an epoch has {len(batches)} of its batches for {self._rank_info.world_size} "
                    "ranks, and each rank takes whole batches",
                    "take a smaller batch or more data; --strong gives each rank a part of a batch",
                )
            raise
        iterator._gpurun_dealt = True
        shards.append(ordered(BatchShard(1, 1), batches))
        return batches[self._rank_info.rank]

    def _refuse(self, iterator: ShardedIterator, what: str) -> NoReturn:
        loader_pass = iterator._gpurun_pass
        where = f" ({loader_pass.where})" if loader_pass is not None and loader_pass.where else ""
        stop_rank(
            f"the training reads {what}{where}: no share of a batch can be given to each rank",
            "build the loader with a batch size of at least a sample for each rank, or run it "
            "without --ddp",
        )

    def _watch_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: ShardedIterator) -> Any:
            shards = iterator._gpurun_shards
            try:
                if shards is not None:
                    self._rng.draw_apart()
                batch = original(iterator)
            except BaseException as error:
                if shards is not None:
                    self._rng.draw_alike()
                loader_pass = iterator._gpurun_pass
                if isinstance(error, StopIteration) and _in_script() and loader_pass is not None:
                    self._roles.ended(loader_pass)
                drop_frame(error)
                raise
            loader_pass = iterator._gpurun_pass
            if loader_pass is not None and torch.is_grad_enabled() and _in_script():
                self._roles.handed(loader_pass)
            if shards:
                self._last = shards.popleft()
                self._handed.append(self._last)
                self._ddp.fed = True
                iterator._gpurun_handed += 1
                self._ddp.passes.left = self._left(iterator)
                if _in_script():
                    self.order = hash((self.order, self._last.order)) % ORDERS
            if isinstance(batch, RepeatedBatch):
                self._last = WHOLE_BATCH
                return batch.batch
            return batch

        return __next__

    def _left(self, iterator: ShardedIterator) -> int | None:
        """Batches that an iterator has left for this rank; None if its length is unknown."""
        try:
            batches = len(iterator._index_sampler)
        except (TypeError, NotImplementedError):
            return None
        if self._share is Share.LOCAL:
            batches //= self._rank_info.world_size
        return batches - int(iterator._gpurun_handed)

    def _watch_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @transparent
        def fetch(fetcher: StreamFetcher, places: object) -> Any:
            if not isinstance(places, StreamShard):
                return original(fetcher, places)
            samples, found = fetcher.dataset_iter, None
            if not fetcher.ended:
                # each rank reads the whole stream, which may draw its order
                alike = self._rng.alike_inside() if get_worker_info() is None else nullcontext()
                with alike:
                    found = read_shard(samples, places, fetcher.drop_last)
            if found is None:
                fetcher.ended = True
                raise StopIteration
            share, repeated = found
            batch = fetcher.collate_fn(share)
            return RepeatedBatch(batch) if repeated else batch

        return fetch

    def _watch_len(self, original: Callable[..., int]) -> Callable[..., int]:
        @transparent
        def __len__(loader: DataLoader[Any]) -> int:
            batches = original(loader)
            shared = self._active() and loader._dataset_kind != STREAM and self.trains(loader)
            # with fewer batches than ranks the first one stops the rank: see `_in_turn`
            return (
                max(batches // self._rank_info.world_size, min(batches, 1)) if shared else batches
            )

        return __len__


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
