"""Persistent workers that leave the random numbers of the script's own process as they were.

torch draws a seed for new workers each time that a loader is opened, from the generator that also
shuffles; with persistent workers only the first time. The shuffles of later epochs, and whatever
else draws from that generator, would come out differently. So the draw is made up for.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from gpurun.knobs.api import Hooks, LoaderCall
from gpurun.knobs.loading.marked_true import MarkedTrue
from gpurun.records.frames import drop_frame


def keep_workers(call: LoaderCall) -> None:
    """Let the workers of this loader live on from epoch to epoch."""
    call.arguments["persistent_workers"] = MarkedTrue(True)


def keep_draws(hooks: Hooks) -> None:
    """Have the seed drawn at each opening of the loaders given to `keep_workers`."""
    hooks.on_import("torch.utils.data.dataloader", _patch)


def _patch(dataloader: ModuleType) -> None:
    import torch

    iterator: Any = dataloader._MultiProcessingDataLoaderIter
    original = iterator._reset
    if hasattr(original, "_draws"):
        return

    @functools.wraps(original)
    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter and isinstance(loader.persistent_workers, MarkedTrue):
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        try:
            original(self, loader, first_iter)
        except BaseException as error:
            drop_frame(error)
            raise

    _reset._draws = True  # type: ignore[attr-defined]
    iterator._reset = _reset
