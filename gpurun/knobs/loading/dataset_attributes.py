"""What a data set reaches: what it holds, and what its code names.

It holds attributes, wrapped data sets, lists and dicts. Its methods, and the functions that these
call, name class attributes, globals, closures and defaults. Only the script's own code is read, and
of a script's modules only what that code names.
"""

from __future__ import annotations

import contextlib
import copyreg
import dis
import functools
import logging
import os
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Iterator
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from types import SimpleNamespace as Simple
from typing import Any

from gpurun.knobs.callers import is_users_file

PLAIN = (bool, int, float, complex, str, bytes, type(None))
DEPTH = 8
ITEMS = 64
OBJECTS = 5000
"""Bounds of the walk through a data set's attributes: wrappers are few levels deep."""
LIBRARIES = {"PIL", "gpurun", "numpy", "torch", "torchaudio", "torchvision"}
"""Packages, beside python's own, whose classes have no attribute that a script changes."""
BUILDS = ("__init__", "__new__", "__post_init__")
"""Methods that an object which is there already does not call again."""
READING = ("LOAD_GLOBAL", "IMPORT_NAME")
CHANGING = {"Module", "Optimizer", "DataLoader"}
"""Classes of torch: the training changes their objects, which code may name beside its data."""

Child = tuple[str, Any, bool]
"""Name, value, and whether code names it (else an object holds it)."""


def attributes(owner: object) -> Iterator[tuple[str, Any]]:
    """Name and value of what a data set or a function reaches, nearest first."""
    waiting = deque([("data set", owner, False, 0)])
    seen: set[int] = set()
    for _ in range(OBJECTS):
        if not waiting:
            break
        name, value, named, depth = waiting.popleft()
        if isinstance(value, PLAIN):
            yield name, value
            continue
        if id(value) in seen or isinstance(value, (ModuleType, logging.Logger)):
            continue
        seen.add(id(value))
        if depth and not isinstance(value, type):
            yield name, value
        if depth < DEPTH and opened_file(value) is None:
            waiting += [(*child, depth + 1) for child in _children(name, value, named)]


def opened_file(value: Any) -> str | None:
    """The file that an open file, archive, table of HDF5 or mapped array stands for; else None."""
    if isinstance(value, type):
        return None
    try:
        name = getattr(value, "filename", None)
        if name is None and callable(getattr(value, "close", None)):
            name = getattr(value, "name", None)
        if name is None:
            name = getattr(getattr(value, "file", None), "filename", None)
        name = os.fspath(name) if isinstance(name, (str, os.PathLike)) else ""
        return name if isinstance(name, str) and os.path.isfile(name) else None
    except Exception:  # whatever an attribute of the script's raises
        return None


def _children(name: str, value: Any, named: bool) -> list[Child]:
    if isinstance(value, (list, tuple)):
        return [(name, item, named) for item in value[:ITEMS]]
    if isinstance(value, dict):
        return [(name, item, named) for item, _ in zip(value.values(), range(ITEMS), strict=False)]
    if isinstance(value, functools.partial):
        parts = (value.func, *value.args, *value.keywords.values())
        return [(name, item, named) for item in parts]
    if isinstance(value, MethodType):
        return [(name, value.__self__, named), (name, value.__func__, True)]
    if isinstance(value, BuiltinMethodType):
        return [(name, value.__self__, named)]
    if isinstance(value, type):
        return list(_members(value, named))
    if isinstance(value, FunctionType) and _is_own(value.__globals__.get("__name__", "")):
        return list(_named_by(value))
    return _held(name, value, named)


def _held(name: str, value: Any, named: bool) -> list[Child]:
    """The attributes of an object; of one that code names only if its class is the script's own."""
    cls, held = type(value), getattr(value, "__dict__", {})
    if cls.__module__.startswith("multiprocessing."):
        return []  # its queues and proxies know of forks
    own = _is_own(cls.__module__)
    if named and not (own or isinstance(value, (Namespace, Simple))):
        return [(name, held["__wrapped__"], True)] if "__wrapped__" in held else []
    if named and not CHANGING.isdisjoint(base.__name__ for base in cls.__mro__):
        return []
    # those of libraries hold what was computed once, as the text of a path
    slots: list[str] = copyreg._slotnames(cls) if _is_users(cls.__module__) else []  # type: ignore[attr-defined]
    found = [(slot, getattr(value, slot), named) for slot in slots if hasattr(value, slot)]
    return [(name, cls, False), *((key, item, named) for key, item in held.items()), *found]


def _members(cls: type, named: bool) -> Iterator[Child]:
    """What a class and its bases hold; code that names a class may build an object of it."""
    for base in cls.__mro__:
        for name, value in vars(base).items() if _is_own(base.__module__) else ():
            if isinstance(value, (classmethod, staticmethod)):
                value = value.__func__
            elif isinstance(value, (property, functools.cached_property)):
                value = getattr(value, "fget", None) or getattr(value, "func", None)
            builds = name in BUILDS and not named
            if not builds and (callable(value) or not name.startswith("__")):
                yield name, value, True


def _named_by(function: FunctionType) -> Iterator[Child]:
    """Globals that a function reads, its closure, its defaults, and what it wraps."""
    known, code = function.__globals__, function.__code__
    read, names = _names(code)
    for name in read:
        value = known.get(name, sys.modules.get(name))  # the function itself may import it
        if not isinstance(value, ModuleType):
            yield name, value, True
        elif _is_own(value.__name__):
            inside = vars(value)
            yield from ((inner, inside[inner], True) for inner in names if inner in inside)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # not set yet
            yield name, cell.cell_contents, True
    for default in (function.__defaults__, function.__kwdefaults__, vars(function)):
        yield function.__name__, default, True


@functools.cache
def _names(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The globals that code reads, with the modules that it imports, and all of its names:
    attributes are among them."""
    read = [x.argval for x in dis.get_instructions(code) if x.opname in READING]
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    read += [name for globals_read, _ in inner for name in globals_read]
    names = [*code.co_names, *(name for _, others in inner for name in others)]
    return tuple(dict.fromkeys(read)), tuple(dict.fromkeys(names))


@functools.cache
def _is_users(module: str) -> bool:
    """True for a module of the script's, or of a library that may keep a state."""
    package = module.partition(".")[0]
    return package not in LIBRARIES and package not in sys.stdlib_module_names


@functools.cache
def _is_own(module: str) -> bool:
    """True for a module of the script's, which is not installed."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return _is_users(module) and is_users_file(file or "")
