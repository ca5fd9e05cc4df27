"""Data sets that change in the script's process while workers read a copy of them.

A worker process keeps the copy of the data set that it was started with, and reads ahead. What the
script changes (a size, a difficulty) during an epoch would have reached the batches that are left
of it: that is noticed. What it changes between epochs workers that live on would not see: they are
started anew, as without persistent workers. So they are where the loader is opened before its last
epoch has ended: torch would begin that epoch again, although the script may still read it.

torch draws a seed for new workers each time that a loader is opened, from the generator that also
shuffles. With persistent workers it draws only the first time. The shuffles of later epochs, and
whatever else draws from that generator, would come out differently. So the draw is made up for.
"""

from __future__ import annotations

import contextlib
import dis
import functools
from argparse import Namespace
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_loaders

from gpurun.identity_map import IdentityMap
from gpurun.knobs.loading.added_workers import MarkedInt, MarkedTrue
from gpurun.knobs.loading.applied.loader_iterators import Loader, on_reading
from gpurun.knobs.loading.dataset_attributes import attributes, is_users
from gpurun.records.frames import transparent

PLAIN = (bool, int, float, complex, str, bytes, type(None))
SMALL_BYTES = 1 << 16
"""The content of larger arrays is not compared."""
CONFIGURATIONS = (dict, list, Namespace, SimpleNamespace)
"""Globals of these classes are looked into: others may be a model, whose parameters change."""


def dataset_state(dataset: object, collate_fn: object) -> int | None:
    """A number that differs once a data set, or what it is collated by, has changed.

    gpurun looks at what both hold, at the class attributes and globals that they name, and into
    globals that are dicts or namespaces. It compares plain values, whether anything else is the
    same object, the length of containers, the version of tensors and the content of small arrays.
    None if that cannot be told.
    """
    try:
        return hash(tuple(_parts(dataset, collate_fn)))
    except Exception:  # whatever an attribute of the script's raises
        return None


def _parts(*owners: object) -> Iterator[Any]:
    for owner in owners:
        outside = list(_named_outside(owner))
        for name, value in (*attributes(owner), *outside):
            yield name, *_marks(value)
        for _, value in outside:
            if isinstance(value, CONFIGURATIONS):
                yield from (_marks(inner) for _, inner in attributes(value))


def _named_outside(owner: object) -> Iterator[tuple[str, Any]]:
    """Class attributes of a data set, of those that it wraps and of its transforms, and the globals
    that its methods read; of a function the globals that it reads, and its closure."""
    parts = [owner, *(value for _, value in attributes(owner))]
    functions = [part for part in parts if isinstance(part, FunctionType)]
    for cls in {cls: None for part in parts for cls in type(part).__mro__ if is_users(cls)}:
        for name, value in vars(cls).items():
            method = getattr(value, "fget", None) or getattr(value, "__func__", value)
            if isinstance(method, FunctionType):
                functions.append(method)
            elif not name.startswith("__"):
                yield name, value
    for function in filter(is_users, functions):
        known, code = function.__globals__, function.__code__
        yield from ((name, known[name]) for name in _globals_read(code) if name in known)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # not set yet
                yield name, cell.cell_contents


@functools.cache
def _globals_read(code: CodeType) -> tuple[str, ...]:
    """`co_names` has the names of attributes, too."""
    names = [x.argval for x in dis.get_instructions(code) if x.opname == "LOAD_GLOBAL"]
    inner = [name for c in code.co_consts if isinstance(c, CodeType) for name in _globals_read(c)]
    return tuple(dict.fromkeys(names + inner))


def _marks(value: Any) -> tuple[Any, ...]:
    if isinstance(value, PLAIN):
        return (value,)
    try:
        if isinstance(value, (list, tuple, dict, set, frozenset, bytearray)):
            return id(value), len(value)
        if hasattr(value, "_version") and hasattr(value, "data_ptr"):
            return value.data_ptr(), value._version
        if hasattr(value, "__array_interface__") and value.nbytes <= SMALL_BYTES:
            return (value.tobytes(),)
    except Exception:  # tensors of inference mode have no version, sparse ones no address
        pass
    return (id(value),)


CHANGED = "the script changes its data set during an epoch, which its workers did not see"


def watch_datasets(revoked: Callable[[str], None]) -> None:
    """Compare the data set of loaders with a `MarkedInt` of workers with what it was like when the
    epoch began: at its end, and before its batches 2, 4, 8, ... since it may be left early."""
    begun: IdentityMap[int | None] = IdentityMap()

    def compare(iterator: Any, error: BaseException | None) -> None:
        if not isinstance(iterator._num_workers, MarkedInt):
            return
        read = iterator._num_yielded
        if error is None and read == 0:
            begun[iterator] = _state(iterator)
        elif isinstance(error, StopIteration) or (error is None and (read + 1).bit_count() == 1):
            before, now = begun.get(iterator), _state(iterator)
            if None not in (before, now) and before != now:
                revoked(CHANGED)

    on_reading(compare)


def _state(iterator: Any) -> int | None:
    return dataset_state(iterator._dataset, iterator._collate_fn)


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
