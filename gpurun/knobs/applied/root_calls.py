"""The calls of root modules: contexts around them, and the tensors that they take and return."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, TypeGuard

from torch import Tensor


class RootContext:
    """`inner`, which entering may have opened, is closed when the call of the root ends."""

    inner: AbstractContextManager[object] | None = None

    def open_inside(self, inner: AbstractContextManager[object]) -> None:
        """Keep `inner` open until the call of the root ends."""
        self.inner = inner
        inner.__enter__()

    def __exit__(self, *how: Any) -> None:
        if self.inner is not None:
            self.inner.__exit__(*how)


COPIED_LATER: list[Callable[[Tensor], bool]] = []
"""Each tells whether a knob copies this output of a root after those before it had it in hand."""


PLAIN = (bool, int, float, complex, str, bytes)

TensorMap = Callable[[Tensor], object]


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """True if it is a tensor, or stands for one while torch.fx traces."""
    return hasattr(value, "is_floating_point")


def map_tensors(value: object, change: TensorMap) -> Any:
    """`value` with `change` applied to every tensor in its tuples, lists, dicts and dataclasses.

    Containers keep their type. A container in which nothing changes is returned itself, and so is
    one that cannot be rebuilt.
    """
    if is_tensor(value):
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


def leaves(value: object) -> list[Tensor]:
    """The tensors in `value`, in the order in which `map_tensors` meets them."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, note)
    return found


def foreign(value: object) -> str | None:
    """The class of an object in `value` that is neither tensor, number, text nor container.

    Such an object (a cache of keys and values, a graph) may hold tensors or change when it is used.
    """
    if is_tensor(value) or isinstance(value, (*PLAIN, type(None))):
        return None
    items: Iterable[object]
    if isinstance(value, dict):
        items = value.values()
    elif isinstance(value, (list, tuple)):
        items = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [getattr(value, field.name) for field in dataclasses.fields(value)]
    else:
        return type(value).__name__
    return next((name for item in items if (name := foreign(item)) is not None), None)


def _sequence(value: list[Any] | tuple[Any, ...], change: TensorMap) -> object:
    items = [map_tensors(item, change) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    make = getattr(value, "_make", type(value))
    return make(items)


def _mapping(value: dict[Any, Any], change: TensorMap) -> object:
    items = {key: map_tensors(item, change) for key, item in value.items()}
    changed = {key: item for key, item in items.items() if item is not value[key]}
    if not changed:
        return value
    # a ModelOutput is both a dict and a dataclass: its own __setitem__ keeps the two in step
    result = copy.copy(value)
    for key, item in changed.items():
        result[key] = item
    return result


def _record(value: Any, change: TensorMap) -> object:
    result = None
    for field in dataclasses.fields(value):
        old = getattr(value, field.name)
        new = map_tensors(old, change)
        if new is not old:
            result = copy.copy(value) if result is None else result
            object.__setattr__(result, field.name, new)
    return value if result is None else result
