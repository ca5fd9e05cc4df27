"""How fast each side of a training is alone: the model without its loader, the loader alone.

In a trial for this the training loader hands out one batch again and again, so that the steps are
those of a model that never waits. When they are measured, the script's own loader is iterated with
nothing else to do, and the trial ends.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from gpurun.records.events import CeilingsEvent
from gpurun.records.spec import StopRule
from gpurun.runtime.core.patching import guarded, replace
from gpurun.runtime.core.recorder import RECORDER, error_text
from gpurun.runtime.observe.loader_iterator import LoaderIterator
from gpurun.runtime.observe.loaders import LOADERS, count_indices
from gpurun.runtime.observe.root_inputs import first_tensor
from gpurun.runtime.observe.step_clock import CLOCK, LoaderState

LEAST_BATCHES = 12
LONGEST_SECONDS = 10.0
"""The loader alone is given up after so long, with what it handed out by then."""

now = time.perf_counter_ns


class ResidentBatch:
    """Has each training loader hand out one batch, its second one, for ever.

    The iterator below `__next__` is replaced: what watches loaders sees batches as always.
    """

    def __init__(self) -> None:
        self.in_use = False
        self._kept: dict[int, tuple[object, object]] = {}
        """Batch and indices, by the loader's number."""

    def install(self) -> None:
        """Replace the iterators of torch's loaders, with workers and without."""
        loaders: Any = torch.utils.data.dataloader
        for kind in (loaders._SingleProcessDataLoaderIter, loaders._MultiProcessingDataLoaderIter):
            replace(kind, "_next_data", self._watch)

    def _watch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        keep = guarded("resident batch", self._keep)

        def _next_data(iterator: LoaderIterator) -> Any:
            state, waiting = iterator._gpurun_state, iterator._gpurun_indices
            kept = None if state is None else self._kept.get(state.number)
            if kept is None:
                batch = original(iterator)
                if state is not None and state.training_batches:
                    keep(state, iterator, batch)
                return batch
            if waiting is not None:
                waiting.appendleft(kept[1])
            return _as_new(kept[0])

        return _next_data

    def _keep(self, state: LoaderState, iterator: LoaderIterator, batch: object) -> None:
        waiting = iterator._gpurun_indices
        self._kept[state.number] = (_as_new(batch), waiting[0] if waiting else None)
        self.in_use = True

    def forget(self) -> None:
        """Have loaders hand out their own batches again."""
        self._kept.clear()


class Ceilings:
    """Both measurements of this process. `rule`: of its trial."""

    def __init__(self, rule: StopRule) -> None:
        self._seconds = rule.min_seconds
        self._resident = ResidentBatch()
        self._opened: dict[int, DataLoader[Any]] = {}
        """By number: a script may hold the iterator alone."""
        self._samples = 0

    def begin(self) -> None:
        """The steps from now on are those of the model alone."""
        self._resident.install()
        replace(DataLoader, "__iter__", self._watch_iter)

    def _watch_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        opened = self._opened

        def __iter__(loader: DataLoader[Any]) -> Any:
            state = LOADERS.states.get(loader)
            if state is not None:
                opened[state.number] = loader
            return original(loader)

        return __iter__

    def finish(self) -> None:
        """The steps are over: measure the loader and write what was found."""
        resident = self._resident.in_use
        self._resident.forget()
        fed = [self._opened[n] for n in CLOCK.loaders_of_step() if n in self._opened]
        if len(fed) == 1:
            LOADERS.on_batch = self._count
            rate, why = self._loader_alone(fed[0])
        else:
            rate, why = None, f"{len(fed) or 'no'} loaders feed the training"
        RECORDER.event(CeilingsEvent(resident, rate, why))

    def _loader_alone(self, loader: DataLoader[Any]) -> tuple[float | None, str]:
        """Samples a second; None and why, where there are none."""
        ahead = loader.num_workers * (loader.prefetch_factor or 2)
        try:
            batches = _for_ever(loader)
            for _ in range(ahead + 1):  # made before anybody asked for them
                next(batches)
            began, taken, self._samples = now(), 0, 0
            while not self._enough(taken, (now() - began) / 1e9):
                next(batches)
                taken += 1
            seconds = (now() - began) / 1e9
        except StopIteration:
            return None, "the loader has no further batches"
        except Exception as error:
            return None, f"the loader failed when it was read again: {error_text(error)}"
        return (self._samples / seconds, "") if self._samples else (None, "samples are not counted")

    def _enough(self, taken: int, seconds: float) -> bool:
        if seconds > LONGEST_SECONDS:
            return taken > 0
        return taken >= LEAST_BATCHES and seconds >= self._seconds

    def _count(self, state: LoaderState, indices: object, batch: object) -> None:
        first = first_tensor((batch,), {})
        self._samples += count_indices(indices) or (0 if first is None else len(first))


def _for_ever(loader: DataLoader[Any]) -> Iterator[Any]:
    """Pass after pass, as epochs; ends with a pass that has no batch."""
    while True:
        some = False
        for batch in loader:
            some = True
            yield batch
        if not some:
            return


def _as_new(batch: Any) -> Any:
    """The same tensors in containers of their own: a script may pop from its batches."""
    if isinstance(batch, Tensor):
        return batch
    if type(batch) in (list, tuple):
        return type(batch)(map(_as_new, batch))
    if type(batch) is dict:
        return {key: _as_new(value) for key, value in batch.items()}
    return copy.copy(batch)
