"""Seeing DataLoaders: how they are built, how long the script waits, what they hand out."""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from threading import get_ident, main_thread
from typing import Any
from weakref import WeakKeyDictionary

from gpurun.knobs.api import LoaderCall
from gpurun.records.events import EpochEvent, LoaderEvent
from gpurun.runtime.patching import drop_frame, guarded, replace
from gpurun.runtime.recorder import RECORDER
from gpurun.runtime.source import batch_size_expression
from gpurun.runtime.steps import CLOCK, LoaderState

now = time.perf_counter_ns


class Loaders:
    """The DataLoaders of this process."""

    def __init__(self) -> None:
        self.torch: Any = None
        self.edits: list[Callable[[LoaderCall], None]] = []
        self.training_keys: frozenset[str] = frozenset()
        self.on_batch: Callable[[LoaderState, Any, Any], None] | None = None
        self.states: WeakKeyDictionary[Any, LoaderState] = WeakKeyDictionary()
        self._sites: Counter[str] = Counter()
        self._count = 0
        self._own = os.sep + os.path.join("gpurun", "runtime") + os.sep
        self._library = ""

    def install(self, torch: Any, training_keys: frozenset[str]) -> None:
        """Watch `torch.utils.data.DataLoader` and its iterators."""
        from torch.utils.data import dataloader

        self.torch = torch
        self.training_keys = training_keys
        self._library = os.path.dirname(torch.__file__) + os.sep
        replace(dataloader.DataLoader, "__init__", self._watch_init)
        replace(dataloader.DataLoader, "__iter__", self._watch_iter)
        replace(dataloader._BaseDataLoaderIter, "__next__", self._watch_next)
        replace(dataloader._BaseDataLoaderIter, "_next_index", self._watch_next_index)
        replace(dataloader._BaseDataLoaderIter, "_reset", self._watch_reset)

    # -- construction --------------------------------------------------------------------------

    def _watch_init(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)
        loaders = self

        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            site = loaders._site()
            call = loaders._edited(signature, loader, args, kwargs, site) if loaders.edits else None
            try:
                if call is None:
                    original(loader, *args, **kwargs)
                else:
                    original(loader, **call.arguments)
            except BaseException as error:
                drop_frame(error)
                raise
            loaders._built(loader, site)

        return __init__

    def _site(self) -> tuple[str, str, int]:
        """Key, file and line of the code that builds the loader, outside torch and us."""
        frame: Any = sys._getframe(2)
        while frame.f_back is not None and self._foreign(frame.f_code.co_filename):
            frame = frame.f_back
        file, line = frame.f_code.co_filename, frame.f_lineno
        place = f"{os.path.basename(file)}:{line}"
        self._sites[place] += 1
        return f"{place}#{self._sites[place] - 1}", file, line

    def _foreign(self, file: str) -> bool:
        return file.startswith(self._library) or self._own in file

    def _edited(
        self,
        signature: inspect.Signature,
        loader: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        site: tuple[str, str, int],
    ) -> LoaderCall | None:
        try:
            arguments = dict(signature.bind(loader, *args, **kwargs).arguments)
        except TypeError:
            return None  # the script's own error: let torch raise it
        arguments.pop(next(iter(signature.parameters)), None)
        key = site[0]
        call = LoaderCall(
            key=key,
            arguments=arguments,
            training=(key in self.training_keys) if self.training_keys else None,
            iterable=isinstance(arguments.get("dataset"), self.torch.utils.data.IterableDataset),
            subclass=type(loader) is not self.torch.utils.data.DataLoader,
        )
        for edit in self.edits:
            edit(call)
        return call

    def _built(self, loader: Any, site: tuple[str, str, int]) -> None:
        if loader in self.states:
            return
        state = self.states[loader] = LoaderState(self._count)
        self._count += 1
        describe = guarded("loader event", _loader_event)
        event = describe(state.number, loader, site, self.torch)
        if event is not None:
            RECORDER.event(event)

    # -- iteration -----------------------------------------------------------------------------

    def _watch_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        loaders = self

        def __iter__(loader: Any) -> Any:
            try:
                iterator = original(loader)
            except BaseException as error:
                drop_frame(error)
                raise
            state = loaders.states.get(loader)
            if state is not None:
                iterator.__dict__["_gpurun_state"] = state
                state.batches = state.training_batches = 0
                state.passes += 1
                RECORDER.event(EpochEvent(state.number, "begin", now(), None, None))
            return iterator

        return __iter__

    def _watch_next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _next_index(iterator: Any) -> Any:
            try:
                indices = original(iterator)
            except BaseException as error:
                drop_frame(error)
                raise
            # multi-worker iterators read ahead while they are built, before `__iter__` returns
            iterator.__dict__.setdefault("_gpurun_indices", deque()).append(indices)
            return indices

        return _next_index

    def _watch_reset(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _reset(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            # an epoch left early leaves read-ahead batches of persistent workers behind
            iterator.__dict__.pop("_gpurun_indices", None)
            return original(iterator, *args, **kwargs)

        return _reset

    def _watch_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        loaders = self
        grad_enabled = self.torch.is_grad_enabled
        main = main_thread().ident
        tell = guarded("batch", CLOCK.batch)

        def __next__(iterator: Any) -> Any:
            began = now()
            try:
                batch = original(iterator)
            except BaseException as error:
                if isinstance(error, StopIteration):
                    loaders._exhausted(iterator)
                drop_frame(error)
                raise
            fields = iterator.__dict__
            state = fields.get("_gpurun_state")
            if state is not None:
                waiting = fields.get("_gpurun_indices")
                indices = waiting.popleft() if waiting else None
                if grad_enabled():
                    waited = now() - began if get_ident() == main else 0
                    tell(state, waited, _count_indices(indices))
                if loaders.on_batch is not None:
                    loaders.on_batch(state, indices, batch)
            return batch

        return __next__

    def _exhausted(self, iterator: Any) -> None:
        state = iterator.__dict__.get("_gpurun_state")
        if state is not None:
            iterator.__dict__.pop("_gpurun_indices", None)
            RECORDER.event(
                EpochEvent(state.number, "end", now(), state.batches, state.training_batches)
            )


def _count_indices(indices: Any) -> int | None:
    """Data-set indices in a batch; None where the sampler does not hand out indices."""
    if isinstance(indices, (list, tuple)) and indices and indices[0] is not None:
        return len(indices)
    return None


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except Exception:
        return None  # iterable data sets and endless samplers have none


def _loader_event(number: int, loader: Any, site: tuple[str, str, int], torch: Any) -> LoaderEvent:
    key, file, line = site
    context = getattr(loader, "multiprocessing_context", None)
    iterable = loader._dataset_kind == 1
    plain = type(getattr(loader, "batch_sampler", None)) is torch.utils.data.BatchSampler
    return LoaderEvent(
        loader=number,
        key=key,
        class_name=type(loader).__name__,
        subclass=type(loader) is not torch.utils.data.DataLoader,
        dataset_class=type(loader.dataset).__name__,
        dataset_length=_length(loader.dataset),
        length=None if iterable else _length(loader.batch_sampler or loader.sampler),
        batch_size=loader.batch_size,
        workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=bool(loader.persistent_workers),
        pin_memory=bool(loader.pin_memory),
        drop_last=bool(loader.drop_last),
        iterable=iterable,
        custom_batch_sampler=loader.batch_sampler is not None and not plain,
        start_method=None if context is None else context.get_start_method(),
        batch_size_argument=batch_size_expression(file, line),
    )


LOADERS = Loaders()
"""The loaders of this process."""
