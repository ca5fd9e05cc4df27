"""Change the tensors in what a module returned, whatever they are packed in."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any


def map_tensors(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` applied to every tensor in its tuples, lists, dicts and dataclasses.

    Containers keep their type; one in which nothing changes is returned itself, and so is one
    that cannot be rebuilt.
    """
    if hasattr(value, "is_floating_point"):
        return change(value)
    try:
        if isinstance(value, (list, tuple)):
            return _sequence(value, change)
        if isinstance(value, dict):
            return _mapping(value, change)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _record(value, change)
    except (TypeError, AttributeError):
        return value
    return value


def _sequence(value: Any, change: Callable[[Any], Any]) -> Any:
    items = [map_tensors(item, change) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    make = getattr(value, "_make", type(value))
    return make(items)


def _mapping(value: Any, change: Callable[[Any], Any]) -> Any:
    items = {key: map_tensors(item, change) for key, item in value.items()}
    changed = {key: item for key, item in items.items() if item is not value[key]}
    if not changed:
        return value
    # a ModelOutput is both a dict and a dataclass: its own __setitem__ keeps the two in step
    result = copy.copy(value)
    for key, item in changed.items():
        result[key] = item
    return result


def _record(value: Any, change: Callable[[Any], Any]) -> Any:
    result = None
    for field in dataclasses.fields(value):
        old = getattr(value, field.name)
        new = map_tensors(old, change)
        if new is not old:
            result = copy.copy(value) if result is None else result
            object.__setattr__(result, field.name, new)
    return value if result is None else result
