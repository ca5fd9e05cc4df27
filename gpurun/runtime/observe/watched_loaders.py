"""Seeing DataLoaders: how they are built, how long the script waits, what they hand out."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import os
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence, Sized
from types import FrameType
from typing import Any, SupportsIndex, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from gpurun.identity_map import IdentityMap
from gpurun.knobs.api import LoaderCall
from gpurun.knobs.callers import caller_past, is_ours
from gpurun.knobs.loading.loader_fitness import start_method
from gpurun.records.events import EpochEvent, LoaderEvent
from gpurun.records.frames import drop_frame, transparent
from gpurun.records.messages.traits import feeds_training, place
from gpurun.runtime.core.knob_outcomes import OUTCOMES
from gpurun.runtime.core.patching import Settle, build_edited, guarded, replace, switched_off
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.core.tensor_values import tensors
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.script_traits import TRAITS, batch_size_expression
from gpurun.runtime.observe.step_clock import CLOCK, LoaderState
from gpurun.runtime.observe.torch_loader_internals import STREAM, WORKERS, LoaderIterator

now = time.perf_counter_ns


class Loaders:
    """The DataLoaders of this process."""

    def __init__(self) -> None:
        self.edits: list[Callable[[LoaderCall], None]] = []
        self.training_keys: frozenset[str] = frozenset()
        self.on_batch: Callable[[LoaderState, Any, Any], None] | None = None
        self.states: IdentityMap[LoaderState] = IdentityMap()
        self._trained_on: IdentityMap[set[tuple[Any, ...]]] = IdentityMap()
        """By data set: place and form of the loaders that feed training."""
        self._sites: Counter[str] = Counter()
        self._unopened: dict[int, str] = {}
        """Keys of the loaders that have handed out nothing yet, by number."""
        self._count = 0
        self._library = ""

    def install(self, training_keys: frozenset[str]) -> None:
        """Watch `torch.utils.data.DataLoader` and its iterators."""
        self._grad_enabled = torch.is_grad_enabled
        self.training_keys = training_keys
        self._library = os.path.dirname(torch.__file__) + os.sep
        replace(DataLoader, "__init__", self._watch_init)
        replace(DataLoader, "__iter__", self._watch_iter)
        iterator: Any = torch.utils.data.dataloader._BaseDataLoaderIter
        iterator._gpurun_state = iterator._gpurun_indices = None
        replace(iterator, "__next__", self._watch_next)
        replace(iterator, "_next_index", self._watch_next_index)
        replace(iterator, "_reset", self._watch_reset)

    def key_of(self, loader: DataLoader[Any]) -> str:
        """Where the script builds this loader, as in `LoaderEvent`; "" for one never seen."""
        state = self.states.get(loader)
        return "" if state is None else state.key

    def _feeds_training(self, key: str, arguments: Mapping[str, Any]) -> bool:
        """True for a loader that feeds training, by the training keys or as one that does.

        An earlier launch may have been over before a loop built its loader anew for the next epoch.
        A loader of the same place, data set, batch size and order is taken for the training's, if
        neither has a sampler of its own.
        """
        known = feeds_training(key, self.training_keys)
        if arguments.get("sampler") is not None or arguments.get("batch_sampler") is not None:
            return known
        dataset = arguments.get("dataset")
        form = (place(key), arguments.get("batch_size"), bool(arguments.get("shuffle")))
        forms = self._trained_on.get(dataset) or set()
        if known:
            with contextlib.suppress(TypeError):  # a list, for one, cannot be held weakly
                self._trained_on[dataset] = forms | {form}
        return known or form in forms

    # -- construction --------------------------------------------------------------------------

    def _watch_init(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)
        loaders = self

        find_site, edited = guarded("loader site", self._site), guarded("edits", self._edited)
        built = guarded("loader built", self._built)
        look_at_main = guarded("main guard", TRAITS.look_at_main)

        def __init__(loader: DataLoader[Any], *args: object, **kwargs: object) -> None:
            look_at_main()
            site = find_site(sys._getframe(1)) or ("unknown:0#0", "", 0)
            call = edited(signature, loader, args, kwargs, site) if loaders.edits else None
            try:
                if call is None:
                    original(loader, *args, **kwargs)
                else:
                    build_edited("edited loader", original, loader, *call)
            except BaseException as error:
                drop_frame(error)
                raise
            built(loader, site)

        return __init__

    def _site(self, frame: FrameType) -> tuple[str, str, int] | None:
        """Key, file and line of the code that builds the loader, outside torch and us."""
        found = caller_past(frame, self._foreign)
        if found is None:
            return None
        file, line = found.f_code.co_filename, found.f_lineno
        built_at = f"{os.path.basename(file)}:{line}"
        self._sites[built_at] += 1
        return f"{built_at}#{self._sites[built_at] - 1}", file, line

    def _foreign(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(self._library) or is_ours(frame)

    def _edited(
        self,
        signature: inspect.Signature,
        loader: DataLoader[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        site: tuple[str, str, int],
    ) -> tuple[dict[str, Any], dict[str, Any], Settle] | None:
        """The script's arguments by name, the edited ones, and the call-back for the outcome."""
        try:
            arguments = dict(signature.bind(loader, *args, **kwargs).arguments)
        except TypeError:
            return None  # the script's own error: let torch raise it
        arguments.pop(next(iter(signature.parameters)), None)
        key = site[0]
        call = LoaderCall(
            key=key,
            arguments=dict(arguments),
            training=self._feeds_training(key, arguments) if self.training_keys else None,
            iterable=isinstance(arguments.get("dataset"), IterableDataset),
            subclass=type(loader) is not DataLoader,
        )
        with OUTCOMES.held() as held:
            for edit in self.edits:
                edit(call)
        return arguments, call.arguments, functools.partial(OUTCOMES.settle, held)

    def _built(self, loader: DataLoader[Any], site: tuple[str, str, int]) -> None:
        if loader in self.states:
            return
        state = LoaderState(self._count, site[0])
        self.states[loader] = state
        self._unopened[state.number] = site[0]
        self._count += 1
        describe = guarded("loader event", _loader_event)
        event = describe(state.number, loader, site)
        if event is not None:
            RECORDER.event(event)

    # -- iteration -----------------------------------------------------------------------------

    def _watch_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        opened = guarded("loader opened", self._opened)

        @transparent
        def __iter__(loader: DataLoader[Any]) -> Any:
            began = now()
            iterator = original(loader)
            opened(loader, iterator, now() - began)
            return iterator

        return __iter__

    def _opened(self, loader: DataLoader[Any], iterator: LoaderIterator, took_ns: int) -> None:
        state = self.states.get(loader)
        if state is not None:
            iterator._gpurun_state = state
            # a loop may build its loader anew for each epoch
            WORKERS.opened(iterator, place(state.key) in CLOCK.trained_places)
            state.batches = state.training_batches = 0
            state.opening_ns = took_ns
            state.passes += 1
            RECORDER.later(EpochEvent(state.number, "begin", now(), None, None))
            key = self._unopened.pop(state.number, None)
            if key is not None:
                self._look_at_first(iterator, key)

    def _look_at_first(self, iterator: LoaderIterator, key: str) -> None:
        """See the first batch of a loader on its way out; those after it cost nothing."""
        look = guarded("first batch", self._first)
        reading = weakref.ref(iterator)  # an iterator that holds itself would keep its workers

        @transparent
        def _next_data() -> Any:
            iterator: Any = reading()  # torch asks it for a batch: it is there
            del iterator._next_data
            batch = iterator._next_data()
            look(batch, key)
            return batch

        iterator._next_data = _next_data

    def _first(self, batch: object, key: str) -> None:
        may_feed = self._grad_enabled() or CLOCK.untrained
        if may_feed and any(tensor.is_cuda for tensor in tensors(batch)):
            TRAITS.note_loader("cuda_batches", key)

    def _watch_next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @transparent
        def _next_index(iterator: LoaderIterator) -> Any:
            indices = original(iterator)
            # multi-worker iterators read ahead while they are built, before `__iter__` returns
            waiting = iterator._gpurun_indices
            if waiting is None:
                waiting = iterator._gpurun_indices = deque()
            waiting.append(indices)
            return indices

        return _next_index

    def _watch_reset(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @transparent
        def _reset(iterator: LoaderIterator, *args: object, **kwargs: object) -> Any:
            # an epoch left early leaves read-ahead batches of persistent workers behind
            iterator._gpurun_indices = None
            return original(iterator, *args, **kwargs)

        return _reset

    def _watch_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        exhausted = guarded("loader exhausted", self._exhausted)
        yielded: Callable[..., None] = self._yielded

        def __next__(iterator: LoaderIterator) -> Any:
            nonlocal yielded
            began = now()
            try:
                batch = original(iterator)
            except StopIteration as error:
                exhausted(iterator)
                drop_frame(error)
                raise
            except BaseException as error:
                drop_frame(error)
                raise
            try:
                waiting = iterator._gpurun_indices
                indices = waiting.popleft() if waiting else None
                state = iterator._gpurun_state
                if state is not None:
                    yielded(state, indices, batch, now() - began)
            except Exception as error:
                yielded = switched_off("batch", error)
            return batch

        return __next__

    def _yielded(self, state: LoaderState, indices: object, batch: object, waited_ns: int) -> None:
        waited_ns += state.opening_ns
        state.opening_ns = 0
        if self._grad_enabled():
            count = CLOCK.evaluation_batch if ROOTS.evaluating() else CLOCK.batch
            count(state, waited_ns, count_indices(indices))
        elif CLOCK.untrained:
            CLOCK.inference_batch(state, waited_ns, count_indices(indices))
        if self.on_batch is not None:
            self.on_batch(state, indices, batch)

    def _exhausted(self, iterator: LoaderIterator) -> None:
        state = iterator._gpurun_state
        if state is not None:
            iterator._gpurun_indices = None
            RECORDER.later(
                EpochEvent(state.number, "end", now(), state.batches, state.training_batches)
            )


def count_indices(indices: object) -> int:
    """Data-set indices in a batch; 0 where the sampler does not hand out batches of indices."""
    if type(indices) is list:
        return len(indices) if indices and indices[0] is not None else 0
    if isinstance(indices, (str, bytes, Mapping)) or not hasattr(indices, "__len__"):
        return 0
    handed = cast(Sequence[object], indices)
    try:
        return len(handed) if len(handed) and handed[0] is not None else 0
    except (TypeError, IndexError, KeyError):
        return 0  # a tensor without dimension; a set


def _length(value: object) -> int | None:
    try:
        return len(cast(Sized, value))
    except Exception:
        return None  # iterable data sets and endless samplers have none


def _loader_event(number: int, loader: DataLoader[Any], site: tuple[str, str, int]) -> LoaderEvent:
    key, file, line = site
    context = {"multiprocessing_context": getattr(loader, "multiprocessing_context", None)}
    iterable = loader._dataset_kind == STREAM
    batches = getattr(loader, "batch_sampler", None)
    sampler = batches if batches is not None else loader.sampler
    return LoaderEvent(
        loader=number,
        key=key,
        class_name=type(loader).__name__,
        subclass=type(loader) is not DataLoader,
        dataset_class=type(loader.dataset).__name__,
        # the length of a stream may be a search through its files
        dataset_length=None if iterable else _length(loader.dataset),
        length=None if iterable else _length(sampler),
        batch_size=_whole(loader.batch_size),
        workers=_whole(loader.num_workers) or 0,
        prefetch_factor=_whole(loader.prefetch_factor),
        persistent_workers=bool(loader.persistent_workers),
        pin_memory=bool(loader.pin_memory),
        drop_last=bool(loader.drop_last),
        iterable=iterable,
        custom_batch_sampler=batches is not None and type(batches) is not BatchSampler,
        start_method=start_method(context),
        batch_size_argument=batch_size_expression(file, line),
        in_script=_is_script(file),
    )


def _is_script(file: str) -> bool:
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return script is not None and os.path.realpath(script) == os.path.realpath(file)


def _whole(value: SupportsIndex | None) -> int | None:
    """A count as an int, also where the script computed it with numpy."""
    return None if value is None else operator.index(value)


LOADERS = Loaders()
"""The loaders of this process."""
