"""Persistent workers that leave the random numbers of the script's own process as they were.

torch draws a seed for new workers each time that a loader is opened, from the generator that also
shuffles. With persistent workers it draws only the first time. The shuffles of later epochs, and
whatever else draws from that generator, would come out differently. So the draw is made up for.

Workers that live on do not see what the script changes in the data set between epochs. Where it has
changed they are started anew, as without persistent workers. They are also started anew where the
loader is opened before its last epoch has ended: torch would begin that epoch again, although the
script may still read it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_loaders

from gpurun.identity_map import IdentityMap
from gpurun.knobs.loading.added_workers import MarkedTrue
from gpurun.knobs.loading.applied.changed_datasets import dataset_state
from gpurun.knobs.loading.applied.loader_iterators import Loader, on_reading
from gpurun.records.frames import transparent

_states: IdentityMap[int | None] = IdentityMap()
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
    on_reading(_read)


def _read(iterator: Any, error: BaseException | None) -> None:
    if error is not None:
        _ended[iterator] = isinstance(error, StopIteration)


def _renew_workers(loader: Loader) -> bool:
    """Part a loader from the workers that it had, if they must not go on with its next epoch."""
    state = dataset_state(loader.dataset, loader.collate_fn)
    before = _states.get(loader)
    _states[loader] = state
    working: Any = loader._iterator
    if working is None or (_ended.get(working) and state is not None and before == state):
        return False
    loader._iterator = None  # its workers end once nobody reads it any more
    return True
