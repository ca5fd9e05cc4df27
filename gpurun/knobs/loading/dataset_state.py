"""What a data set holds, and whether that has changed in the script's process.

A worker process keeps the copy of the data set that it was started with. A script may set an
attribute between epochs (a size, a difficulty): workers that live on would not see it.
"""

from __future__ import annotations

import contextlib
import copyreg
import dis
import functools
import logging
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Iterator
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

DEPTH = 6
ITEMS = 64
OBJECTS = 5000
"""Bounds of the walk through a data set's attributes: wrappers are few levels deep."""
LIBRARIES = {"PIL", "numpy", "torch", "torchaudio", "torchvision"}
"""Packages, beside python's own, whose classes have no attribute that a script changes."""
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
