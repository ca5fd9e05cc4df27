"""Persistent workers that leave the random numbers of the script's own process as they were.

torch draws a seed for new workers each time that a loader is opened, from the generator that also
shuffles. With persistent workers it draws only the first time. The shuffles of later epochs, and
whatever else draws from that generator, would come out differently. So the draw is made up for.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_loaders

from gpurun.knobs.loading.marked_true import MarkedTrue
from gpurun.records.frames import transparent

Loader = DataLoader[Any]


@functools.cache
def keep_draws() -> None:
    """Draw the seed at each opening of loaders whose `persistent_workers` is a `MarkedTrue`."""
    iterator: Any = torch_loaders._MultiProcessingDataLoaderIter
    original = iterator._reset

    @functools.wraps(original)
    @transparent
    def _reset(
        self: torch_loaders._BaseDataLoaderIter, loader: Loader, first_iter: bool = False
    ) -> None:
        if not first_iter and isinstance(loader.persistent_workers, MarkedTrue):
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        original(self, loader, first_iter)

    iterator._reset = _reset
