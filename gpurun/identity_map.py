"""A weak dictionary by identity: scripts may give their optimizers and loaders an `__eq__`."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class IdentityMap(Generic[V]):
    """Maps objects, whether hashable or not, to values for as long as the objects live."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], V]] = {}

    def get(self, key: object) -> V | None:
        """The value of `key`, None if it has none."""
        entry = self._entries.get(id(key))
        return None if entry is None else entry[1]

    def __setitem__(self, key: object, value: V) -> None:
        entries, number = self._entries, id(key)
        entries[number] = (weakref.ref(key, lambda _: entries.pop(number, None)), value)

    def __contains__(self, key: object) -> bool:
        return id(key) in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self.items())

    def items(self) -> list[tuple[Any, V]]:
        """The objects that are alive, with their values, in the order they came."""
        found = [(ref(), value) for ref, value in list(self._entries.values())]
        return [(key, value) for key, value in found if key is not None]
