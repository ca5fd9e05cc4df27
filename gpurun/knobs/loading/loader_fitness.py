"""Arguments of a DataLoader with which workers would hang, crash, or race with the script.

Whether workers hand out the same samples is no question of these: trials show it
(`gpurun.same.sample_distances`).
"""

from __future__ import annotations

import copyreg
import fcntl
import functools
import logging
import multiprocessing
import os
import pickle
import stat
import sys
from collections import deque
from collections.abc import Iterator
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

from gpurun.knobs.api import LoaderCall
from gpurun.knobs.loading.added_workers import why_shared

DEPTH = 6
ITEMS = 64
OBJECTS = 5000
"""Bounds of the walk through a data set's attributes: wrappers are few levels deep."""

DATA_BASES = {"lmdb": ("Environment", "Transaction"), "sqlite3": ("Connection", "Cursor")}
"""Classes by module whose objects know which locks they hold, which a fork makes untrue."""
POOL_TYPES = {
    "concurrent": {"ProcessPoolExecutor", "ThreadPoolExecutor"},
    "joblib": {"Parallel"},
    "multiprocessing": {"Pool", "ThreadPool"},
}
"""Classes by top module whose threads and connections a forked worker does not have."""
ARRAYS = ("Tensor", "ndarray", "memmap")
LIBRARIES = {"PIL", "numpy", "torch", "torchaudio", "torchvision"}
"""Packages, beside python's own, whose classes have no attribute that a script changes."""


def why_no_workers(call: LoaderCall, no_guard: bool) -> str | None:
    """Why this loader must stay without worker processes; None if it may have them.

    `no_guard`: the script has no `if __name__ == "__main__"`, so a spawned worker would run it.
    """
    dataset = call.arguments.get("dataset")
    if call.subclass:
        return "a subclass of DataLoader, whose own rules are not known"
    if on_cuda(dataset):
        return "the data set holds CUDA tensors"
    if call.arguments.get("batch_size", 1) is None and _keeps_arrays(dataset):
        return (
            "without a batch size it may hand out a tensor that the data set keeps: a worker "
            "would overwrite it while the script reads it"
        )
    if start_method(call.arguments) == "fork":
        return why_no_fork(dataset)
    if no_guard:
        return "the script has no __main__ guard: each worker would run it again"
    return unpicklable(call.arguments)


def start_method(arguments: dict[str, Any]) -> str:
    """The start method of a loader's workers with these arguments: "fork", "spawn" or
    "forkserver"."""
    context = arguments.get("multiprocessing_context")
    if isinstance(context, str):
        return context
    if context is not None:
        return str(context.get_start_method())
    # asking for the default outright would fix it before the script can set its own
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def why_no_fork(dataset: object) -> str | None:
    """Why forked processes cannot read a data set; None if they can.

    A pool's threads and connections are not there; reads of one pipe, socket or data base are mixed
    up. Files are no matter: forked processes have positions of their own (see `file_positions`).
    """
    known = [(sys.modules.get(name), classes) for name, classes in DATA_BASES.items()]
    bases = tuple(getattr(x, name) for x, classes in known if x is not None for name in classes)
    for name, value in attributes(dataset):
        if _is_of(value, POOL_TYPES):
            return f"a forked worker would wait for ever for the {name} of the data set"
        if isinstance(value, bases) or _is_stream(value):
            return f"forked workers would mix up reads from the open {name} of the data set"
    stuck = why_shared()
    return stuck and f"forked workers would share the position of a file: {stuck}"


def on_cuda(dataset: object) -> bool:
    """True if the data set holds tensors on a CUDA device."""
    return any(getattr(value, "is_cuda", False) is True for _, value in attributes(dataset))


def _keeps_arrays(dataset: object) -> bool:
    """True if the data set holds tensors or arrays: it may fill one again for each batch."""
    return any(type(value).__name__ in ARRAYS for _, value in attributes(dataset))


def unpicklable(arguments: dict[str, Any]) -> str | None:
    """Why a spawned worker could not receive the loader's parts; None if it could."""
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        try:
            pickle.Pickler(_Nowhere()).dump(arguments.get(name))
        except Exception as error:
            return f"the {name} cannot be pickled for a worker: {error}"
    return None


def attributes(dataset: object) -> Iterator[tuple[str, Any]]:
    """Name and value of what a data set holds, through wrapped data sets, lists and dicts."""
    waiting = deque([("data set", dataset, 0)])
    seen: set[int] = set()
    while waiting and len(seen) < OBJECTS:
        name, value, depth = waiting.popleft()
        if id(value) in seen or isinstance(value, (type, ModuleType, logging.Logger)):
            continue
        seen.add(id(value))
        if depth:
            yield name, value
        if depth < DEPTH:
            waiting += [(n, v, depth + 1) for n, v in _children(name, value)]


def is_users(made: type | FunctionType) -> bool:
    """True for a class or function of the script's, or of a library that may keep a state."""
    package = (made.__module__ or "").partition(".")[0]
    return package not in LIBRARIES and package not in sys.stdlib_module_names


def _children(name: str, value: object) -> list[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        return [(name, item) for item in value[:ITEMS]]
    if isinstance(value, dict):
        return [(name, item) for item, _ in zip(value.values(), range(ITEMS), strict=False)]
    if isinstance(value, functools.partial):
        return [(name, item) for item in (value.func, *value.args, *value.keywords.values())]
    if isinstance(value, (MethodType, BuiltinMethodType)):
        return [(name, value.__self__)]
    if type(value).__module__.startswith("multiprocessing."):
        return []  # its queues and proxies know of forks
    # those of libraries hold what was computed once, as the text of a path
    slots: list[str] = copyreg._slotnames(type(value)) if is_users(type(value)) else []  # type: ignore[attr-defined]
    held = [(slot, getattr(value, slot)) for slot in slots if hasattr(value, slot)]
    return [*getattr(value, "__dict__", {}).items(), *held]


def _is_stream(value: object) -> bool:
    """True for an open pipe or socket that can be read, of whatever class."""
    if not callable(getattr(type(value), "fileno", None)):
        return False
    try:
        number: int = value.fileno()  # type: ignore[attr-defined]
        kind, flags = os.fstat(number).st_mode, fcntl.fcntl(number, fcntl.F_GETFL)
    except Exception:
        return False  # closed, or in memory only
    reads = number > 2 and flags & os.O_ACCMODE != os.O_WRONLY
    return reads and (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind))


def _is_of(value: object, classes: dict[str, set[str]]) -> bool:
    kind = type(value)
    return kind.__name__ in classes.get(kind.__module__.split(".")[0], ())


class _Nowhere:
    """A file that forgets what is written to it."""

    def write(self, data: bytes) -> int:
        return len(data)
