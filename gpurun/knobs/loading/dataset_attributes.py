"""What a data set holds, through wrapped data sets, lists and dicts."""

from __future__ import annotations

import copyreg
import functools
import logging
import sys
from collections import deque
from collections.abc import Iterator
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

DEPTH = 6
ITEMS = 64
OBJECTS = 5000
"""Bounds of the walk through a data set's attributes: wrappers are few levels deep."""
LIBRARIES = {"PIL", "numpy", "torch", "torchaudio", "torchvision"}
"""Packages, beside python's own, whose classes have no attribute that a script changes."""


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
