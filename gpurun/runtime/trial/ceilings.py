"""The speed of each side of a training alone: the model without its loader, the loader alone.

A trial for this has three windows, one after the other: the script as it is; the same while the
training loader hands out one batch again and again, so that the model never waits; the script's own
loader with nothing else to do. All three are in one process: launches of different minutes differ
by more than the windows do.
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
from gpurun.records.messages.traits import feeds_training
from gpurun.records.spec import StopRule
from gpurun.runtime.core.patching import guarded, replace
from gpurun.runtime.core.recorder import RECORDER, error_text
from gpurun.runtime.core.tensor_values import first_tensor
from gpurun.runtime.observe.step_clock import CLOCK, LoaderState
from gpurun.runtime.observe.torch_loader_internals import LoaderIterator
from gpurun.runtime.observe.watched_loaders import LOADERS, count_indices

LEAST_STEPS, FEWEST_STEPS = 12, 4
"""Of a window, and of one that is already `PATIENCE` times as long as it should be."""
PATIENCE = 4.0
SETTLE_STEPS = 4
"""Between the first two windows: what was read ahead is used up."""

now = time.perf_counter_ns


class ResidentBatch:
    """Has each training loader hand out one batch, its second one, for ever.

    The iterator below `__next__` is replaced: what watches loaders sees batches as always.
    """

    def __init__(self) -> None:
        self.wanted = self.in_use = False
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
                if self.wanted and state is not None and _feeds_steps(state):
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
        self.wanted = self.in_use = False
        self._kept.clear()


class CeilingWindow:
    """So many steps in so much time, from one step or batch to another."""

    def __init__(self, seconds: float, count: int, begin_ns: int) -> None:
        self.begin_ns = begin_ns
        self._seconds = seconds
        self._first = count

    def is_over(self, count: int, end_ns: int) -> bool:
        """True once there are enough of them."""
        done, seconds = count - self._first, (end_ns - self.begin_ns) / 1e9
        if seconds >= PATIENCE * self._seconds:
            return done >= FEWEST_STEPS
        return done >= LEAST_STEPS and seconds >= self._seconds


class CeilingWindows:
    """The three windows of this process. `rule`: of its trial."""

    def __init__(self, rule: StopRule) -> None:
        self._rule = rule
        self._resident = ResidentBatch()
        self._opened: dict[int, DataLoader[Any]] = {}
        """By number: a script may hold the iterator alone."""
        self._samples = 0
        self._restart()

    def _restart(self) -> None:
        """A better clock was found, or the first: steps are counted anew."""
        self._count_before = 0
        self._window: CeilingWindow | None = None
        self._begin_at = self._rule.warmup_steps
        self._measured: list[tuple[int, int]] = []
        """Begin and end of the windows that are over."""
        self._resident.forget()

    def begin(self) -> None:
        """Watch the loaders."""
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

    def enough(self, count: int, end_ns: int) -> str | None:
        """After each step: why the trial has seen enough, None if it has not."""
        if count <= self._count_before:
            self._restart()
        self._count_before = count
        if count >= self._rule.max_steps:
            return "max_steps"
        if self._window is None:
            if count >= self._begin_at:
                if self._measured and not self._resident.in_use:
                    return "enough"  # nothing hands out batches
                self._window = CeilingWindow(self._rule.min_seconds, count, end_ns)
        elif self._window.is_over(count, end_ns):
            self._measured.append((self._window.begin_ns, end_ns))
            self._window, self._begin_at = None, count + SETTLE_STEPS
            self._resident.wanted = True
        return "enough" if len(self._measured) == 2 else None

    def finish(self) -> None:
        """The steps are over: measure the loader and write what was found."""
        self._resident.forget()
        fed = [self._opened[n] for n in CLOCK.loaders_of_step() if n in self._opened]
        if len(fed) == 1:
            RECORDER.flush()
            LOADERS.on_batch = self._count
            rate, why = self._loader_alone(fed[0])
            RECORDER.drop_later()  # these passes over the loader are no epochs of the script
        else:
            rate, why = None, f"{len(fed) or 'no'} loaders feed the training"
        script, model = (*self._measured, None, None)[:2]
        RECORDER.event(CeilingsEvent(script, model, rate, why))

    def _loader_alone(self, loader: DataLoader[Any]) -> tuple[float | None, str]:
        """Samples a second; None and why, where there are none."""
        ahead = loader.num_workers * (loader.prefetch_factor or 2)
        try:
            batches = _for_ever(loader)
            for _ in range(ahead + 1):  # made before anybody asked for them
                next(batches)
            taken, self._samples, end_ns = 0, 0, now()
            window = CeilingWindow(self._rule.min_seconds, taken, end_ns)
            while not window.is_over(taken, end_ns):
                next(batches)
                taken, end_ns = taken + 1, now()
            seconds = (end_ns - window.begin_ns) / 1e9
        except StopIteration:
            return None, "the loader has no further batches"
        except Exception as error:
            return None, f"the loader failed when it was read again: {error_text(error)}"
        return (self._samples / seconds, "") if self._samples else (None, "samples are not counted")

    def _count(self, state: LoaderState, indices: object, batch: object) -> None:
        first = first_tensor((batch,), {})
        self._samples += count_indices(indices) or (0 if first is None else len(first))


def _feeds_steps(state: LoaderState) -> bool:
    """True if its batches are trained on, or inferred from in a script without training."""
    infers = CLOCK.forward_only and feeds_training(state.key, LOADERS.training_keys)
    return infers or bool(state.training_batches)


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
