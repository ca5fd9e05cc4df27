"""Data sets that change between epochs while workers live on with a copy of them.

A worker process keeps the copy of the data set that it was started with. What the script changes
(a size, a difficulty) between epochs workers that live on would not see: they are started anew, as
without persistent workers. So they are where the copy of one has changed, as by a cache that it
filled: what it was read from may have changed, too (see `worker_changes`). And where the loader is
opened before its last epoch has ended: torch would begin that epoch again, although the script may
still read it.

torch draws a seed for new workers each time that a loader is opened, from the generator that also
shuffles. With persistent workers it draws only the first time. The shuffles of later epochs, and
whatever else draws from that generator, would come out differently. So the draw is made up for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_loaders

from gpurun.identity_map import IdentityMap
from gpurun.knobs.loading.added_workers import KEPT_MARK, MarkedTrue, mark_children
from gpurun.knobs.loading.applied.loader_iterators import Loader, on_opening, on_reading
from gpurun.knobs.loading.dataset_state import State, dataset_state
from gpurun.knobs.loading.worker_changes import workers_changed
from gpurun.records.frames import transparent

_states: IdentityMap[State | None] = IdentityMap()
"""Of loaders whose workers live on: what their data set was like when it was opened last."""
_ended: IdentityMap[bool] = IdentityMap()
"""Of their iterators: true between the end of an epoch and the start of the next one."""


@functools.cache
def keep_draws(renewed: Callable[[], None]) -> None:
    """Draw the seed at each opening of loaders whose `persistent_workers` is a `MarkedTrue`, and
    give those whose data set has changed new workers; then `renewed` is called."""
    iterator: Any = torch_loaders._MultiProcessingDataLoaderIter
    original = iterator._reset
    opened = DataLoader.__iter__

    @functools.wraps(opened)
    @transparent
    def __iter__(loader: Loader) -> Any:
        if isinstance(loader.persistent_workers, MarkedTrue) and _renew_workers(loader):
            renewed()
        return opened(loader)

    @functools.wraps(original)
    @transparent
    def _reset(
        self: torch_loaders._BaseDataLoaderIter, loader: Loader, first_iter: bool = False
    ) -> None:
        if not first_iter and isinstance(loader.persistent_workers, MarkedTrue):
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        _ended[self] = False
        original(self, loader, first_iter)

    iterator._reset = _reset
    DataLoader.__iter__ = __iter__  # type: ignore[method-assign]
    on_opening(_mark)
    on_reading(_read)


def _mark(iterator: Any, loader: Loader, afterwards: ExitStack) -> None:
    if isinstance(loader.persistent_workers, MarkedTrue):
        mark_children(KEPT_MARK, afterwards)


def _read(iterator: Any, error: BaseException | None) -> None:
    if error is not None:
        _ended[iterator] = isinstance(error, StopIteration)


def _renew_workers(loader: Loader) -> bool:
    """Part a loader from the workers that it had, if they must not go on with its next epoch."""
    state = dataset_state(loader.dataset, loader.collate_fn)
    before = _states.get(loader)
    _states[loader] = state
    working: Any = loader._iterator
    alike = state is not None and before == state
    if working is None or (_ended.get(working) and alike and not workers_changed(working)):
        return False
    loader._iterator = None  # its workers end once nobody reads it any more
    return True
