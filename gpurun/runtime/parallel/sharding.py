"""Training loaders hand each rank its share; those of an evaluation hand all of it to every rank.

The share is taken where an iterator asks the batch sampler for indices, so that the script's own
sampler, order and number of batches stay. All ranks draw the order alike.

Which of both a loader is shows once it was read (`uses`). Before that the model's mode tells, and
gradients that are switched off.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from gpurun.records.frames import drop_frame
from gpurun.records.spec import Share
from gpurun.runtime.core.patching import replace
from gpurun.runtime.observe.loaders import LOADERS
from gpurun.runtime.observe.roots import ROOTS
from gpurun.runtime.observe.steps import CLOCK
from gpurun.runtime.parallel.draws import Draws
from gpurun.runtime.parallel.place import Place, give_up, or_give_up
from gpurun.runtime.parallel.replicas import Replicas
from gpurun.runtime.parallel.shares import (
    REPEATED,
    Part,
    Repeated,
    Shared,
    ordered,
    part_of,
    read_share,
)
from gpurun.runtime.parallel.uses import Reading, Uses

LATELY = 8
"""So many batches are at hand at once at most."""
ORDERS = 2**48
"""So many orders are told apart: a float can say them."""


class Sharding:
    """The loaders of one rank; `replicas` hear that one hands out shares."""

    def __init__(
        self, torch: Any, share: Share, where: Place, draws: Draws, replicas: Replicas
    ) -> None:
        self.order = 0
        """A hash of which samples were handed out to all ranks together, and in which order."""
        self._handed: deque[Part] = deque(maxlen=LATELY)
        """The parts of the batches that were handed out lately."""
        self._last: Part | None = None
        """The part of a batch that was handed out last, None before any."""
        self._torch = torch
        self._share = share
        self._place = where
        self._draws = draws
        self._active = replicas.active
        self._replicas = replicas
        self._local = threading.local()
        self._shuffled = False
        """Whether a loader was seen that draws its order."""
        self._uses = Uses(strict=share is Share.GLOBAL)

    def install(self) -> None:
        """Stand between DataLoaders and their samplers."""
        from torch.utils.data import dataloader
        from torch.utils.data._utils import fetch

        iterator: Any = dataloader._BaseDataLoaderIter
        iterator._gpurun_parts, iterator._gpurun_draws = None, False
        iterator._gpurun_reading, iterator._gpurun_dealt = None, False
        self._replicas.on_call.append(lambda: self._uses.called(_in_training()))
        CLOCK.before_step.append(or_give_up("loaders of ranks", self._stepped))
        replace(dataloader.DataLoader, "__init__", self._watch_built)
        replace(dataloader.DataLoader, "__iter__", self._watch_iter)
        replace(iterator, "__init__", self._watch_init)
        replace(iterator, "_reset", self._watch_reset)
        replace(iterator, "_next_index", self._watch_next_index)
        replace(iterator, "__next__", self._watch_next)
        replace(fetch._IterableDatasetFetcher, "fetch", self._watch_fetch)
        if self._share is Share.LOCAL:
            replace(dataloader.DataLoader, "__len__", self._watch_len)

    def trains(self, loader: Any) -> bool:
        """Whether a loader that is now read feeds the training, as far as can be told."""
        if not self._torch.is_grad_enabled():
            return False
        if LOADERS.training_keys:
            return LOADERS.key_of(loader) in LOADERS.training_keys
        in_training = _in_training()
        ordered = not self._draws_order(loader)
        known = self._uses.known(loader, ordered, in_training)
        if known is not None:
            return known
        # a loader in order beside one that is shuffled is there to evaluate
        return in_training and not (ordered and self._shuffled)

    @property
    def part(self) -> Part | None:
        """What of the batch at hand is this rank's; None where no loader feeds the training."""
        if self._uses.repeated(_in_training()):
            return REPEATED
        if self._last is None or self._last is REPEATED:
            return self._last
        # of batches that were read ahead, or of several loaders, the one that the model was given
        rows = self._replicas.called_with
        return next((part for part in reversed(self._handed) if part.own == rows), self._last)

    def went_back(self) -> None:
        """A backward pass is over."""
        self._uses.went_back(_in_training())
        self._replicas.called_with = None

    def finish(self) -> None:
        """The script is over."""
        self._uses.finish()

    def _stepped(self, optimizer: Any) -> None:
        self._uses.stepped(_in_training())

    def _draws_order(self, loader: Any) -> bool:
        """Whether it shuffles, as far as can be told: a batch sampler of the script's own may."""
        data = self._torch.utils.data
        own = type(loader.batch_sampler) not in (data.BatchSampler, type(None))
        sampler = getattr(loader.batch_sampler, "sampler", None if own else loader.sampler)
        return not isinstance(sampler, data.SequentialSampler)

    def _watch_built(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            try:
                original(loader, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            self._shuffled = self._shuffled or self._draws_order(loader)

        return __init__

    def _watch_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __iter__(loader: Any) -> Any:
            try:
                if not self._active():
                    return original(loader)
                self._local.parts = deque() if self.trains(loader) else None
                self._local.reading = self._reading(loader)
                self._draws.leave()
                try:
                    return original(loader)
                finally:
                    self._local.parts = self._local.reading = None
            except BaseException as error:
                drop_frame(error)
                raise

        return __iter__

    def _watch_init(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(iterator: Any, loader: Any) -> None:
            self._open(iterator)
            if iterator._gpurun_parts is not None:
                # `break` frees it: what follows is no step any more
                weakref.finalize(iterator, self._abandoned).atexit = False
            original(iterator, loader)
            if iterator._gpurun_parts is not None and iterator._dataset_kind == 0:
                # workers augment samples of their own: their draws shall not repeat a peer's; of a
                # stream every rank reads the whole, in the same order
                iterator._base_seed = self._draws.apart(iterator._base_seed)

        return __init__

    def _abandoned(self) -> None:
        """An iterator is gone."""
        if _in_script():
            self._draws.leave()

    def _watch_reset(self, original: Callable[..., None]) -> Callable[..., None]:
        def _reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            self._open(iterator)
            original(iterator, loader, first_iter)

        return _reset

    def _open(self, iterator: Any) -> None:
        iterator._gpurun_parts = getattr(self._local, "parts", None)
        iterator._gpurun_reading = getattr(self._local, "reading", None)
        iterator._gpurun_draws = self._active()
        iterator._gpurun_dealt, iterator._gpurun_handed = False, 0

    def _reading(self, loader: Any) -> Reading | None:
        """What is remembered of a loader that is opened; nothing of one that cannot train."""
        if LOADERS.training_keys or not self._torch.is_grad_enabled():
            return None
        shared = self._local.parts is not None
        return self._uses.opened(loader, not self._draws_order(loader), _in_training(), shared)

    def _watch_next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _next_index(iterator: Any) -> Any:
            try:
                shared = iterator._gpurun_parts is not None
                take = functools.partial(self._shared, iterator, original) if shared else None
                if not iterator._gpurun_draws:
                    return take() if take is not None else original(iterator)
                iterator._gpurun_draws = _draws_later(iterator._index_sampler)
                with self._draws.common():
                    return take() if take is not None else original(iterator)
            except BaseException as error:
                drop_frame(error)
                raise

        return _next_index

    def _shared(self, iterator: Any, original: Callable[..., Any]) -> Any:
        """The indices of this rank's share of the next batch."""
        rank, size = self._place.rank, self._place.size
        whole = self._share is Share.LOCAL
        if iterator._dataset_kind == 1:  # a stream: its reader takes the share
            places = original(iterator)
            if not iterator._auto_collation:
                return self._refuse(iterator, "a stream of whole batches") if not whole else places
            if not whole and len(places) < size:
                return self._refuse(iterator, f"a stream by {len(places)} samples at a time")
            count = len(places) if whole else len(places[rank::size])
            iterator._gpurun_parts.append(Part(count, len(places)))
            return self._to_read(places, Shared(places, rank, size, whole))
        if whole:
            return self._in_turn(iterator, original)
        indices = original(iterator)
        if not iterator._auto_collation:
            return self._refuse(iterator, "a loader without a batch size")
        usual = getattr(iterator._index_sampler, "batch_size", None)
        try:
            own, part = part_of(indices, rank, size, usual if isinstance(usual, int) else None)
        except (TypeError, IndexError, KeyError):
            return self._refuse(iterator, f"a batch sampler that yields {type(indices).__name__}s")
        iterator._gpurun_parts.append(ordered(part, indices))
        return self._to_read(indices, own)

    def _to_read(self, whole: Any, share: Any) -> Any:
        """Of the indices of a batch those that this process reads."""
        return share

    def _in_turn(self, iterator: Any, original: Callable[..., Any]) -> Any:
        """One of the next batches, of which every rank takes one; an incomplete round ends it."""
        batches: list[Any] = []
        try:
            while len(batches) < self._place.size:
                batches.append(original(iterator))
        except StopIteration:
            if batches and not iterator._gpurun_dealt:
                give_up(
                    f"an epoch has {len(batches)} of its batches for {self._place.size} ranks, of "
                    "which each takes whole ones",
                    "take a smaller batch or more data; --strong gives each rank a part of a batch",
                )
            raise
        iterator._gpurun_dealt = True
        iterator._gpurun_parts.append(ordered(Part(1, 1), batches))
        return batches[self._place.rank]

    def _refuse(self, iterator: Any, what: str) -> Any:
        reading = iterator._gpurun_reading
        where = f" ({reading.where})" if reading is not None and reading.where else ""
        give_up(
            f"the training reads {what}{where}: no share of a batch can be given to each rank",
            "build the loader with a batch size of at least a sample for each rank, or run it "
            "without --ddp",
        )

    def _watch_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: Any) -> Any:
            parts = iterator._gpurun_parts
            try:
                if parts is not None:
                    self._draws.enter()
                batch = original(iterator)
            except BaseException as error:
                if parts is not None:
                    self._draws.leave()
                reading = iterator._gpurun_reading
                if isinstance(error, StopIteration) and _in_script() and reading is not None:
                    self._uses.ended(reading)
                drop_frame(error)
                raise
            reading = iterator._gpurun_reading
            if reading is not None and self._torch.is_grad_enabled() and _in_script():
                self._uses.handed(reading)
            if parts:
                self._last = parts.popleft()
                self._handed.append(self._last)
                self._replicas.fed = True
                iterator._gpurun_handed += 1
                self._replicas.left = self._left(iterator)
                if _in_script():
                    self.order = hash((self.order, self._last.order)) % ORDERS
            if isinstance(batch, Repeated):
                self._last = REPEATED
                return batch.batch
            return batch

        return __next__

    def _left(self, iterator: Any) -> int | None:
        """Batches that an iterator has left for this rank, None for one that does not tell."""
        try:
            batches = len(iterator._index_sampler)
        except (TypeError, NotImplementedError):
            return None
        if self._share is Share.LOCAL:
            batches //= self._place.size
        return batches - int(iterator._gpurun_handed)

    def _watch_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from torch.utils.data import get_worker_info

        def fetch(fetcher: Any, places: Any) -> Any:
            try:
                if not isinstance(places, Shared):
                    return original(fetcher, places)
                samples, found = fetcher.dataset_iter, None
                if not fetcher.ended:
                    # each rank reads the whole stream, which may draw its order
                    alike = self._draws.common() if get_worker_info() is None else nullcontext()
                    with alike:
                        found = read_share(samples, places, fetcher.drop_last)
                if found is None:
                    fetcher.ended = True
                    raise StopIteration
                share, repeated = found
                batch = fetcher.collate_fn(share)
                return Repeated(batch) if repeated else batch
            except BaseException as error:
                drop_frame(error)
                raise

        return fetch

    def _watch_len(self, original: Callable[..., int]) -> Callable[..., int]:
        def __len__(loader: Any) -> int:
            try:
                batches = original(loader)
            except BaseException as error:
                drop_frame(error)
                raise
            shared = self._active() and loader._dataset_kind == 0 and self.trains(loader)
            # with fewer batches than ranks the first one ends it by name: see `_in_turn`
            return max(batches // self._place.size, min(batches, 1)) if shared else batches

        return __len__


def _in_script() -> bool:
    """Not in a thread that reads ahead: how far it is differs between ranks."""
    return threading.get_ident() == CLOCK.thread


def _in_training() -> bool:
    """Whether the model is in training mode, as far as there is one."""
    roots = ROOTS.modules()
    return not roots or any(root.training for root in roots)


def _draws_later(sampler: Any) -> bool:
    """Whether a batch sampler may draw after its first batch: torch's own seed themselves then."""
    parts = (sampler, getattr(sampler, "sampler", sampler))
    return not all(type(part).__module__ == "torch.utils.data.sampler" for part in parts)
