"""Keys of DataLoaders ("train.py:16#0": file, line, how many were built there before) as text."""

from __future__ import annotations

from collections.abc import Iterable

_BETWEEN = " / "  # no name of a file holds a slash


def joined(keys: Iterable[str]) -> str:
    """One detail that names them all."""
    return _BETWEEN.join(keys)


def keys_in(detail: str | None) -> tuple[str, ...]:
    """The keys that `joined` put into a detail; none if there is no detail."""
    return tuple(detail.split(_BETWEEN)) if detail else ()


def place(key: str) -> str:
    """File and line without the count: the same for a loader that is built anew each epoch."""
    return key.rpartition("#")[0]
