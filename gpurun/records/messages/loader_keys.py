"""Keys of DataLoaders ("train.py:16#0": file, line, how many were built there before) as text."""

from __future__ import annotations

from collections.abc import Collection, Iterable

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


def feeds_training(key: str, training_keys: Collection[str]) -> bool:
    """True for a loader that feeds training, by the keys of those that did in an earlier launch.

    A loop that builds its loader anew for each epoch may go on longer than that launch did: a later
    loader of a place trains if the first ones there, two or more, all did.
    """
    if key in training_keys:
        return True
    known = {_count(other) for other in training_keys if place(other) == place(key)}
    return len(known) > 1 and known == set(range(len(known))) and _count(key) >= len(known)


def _count(key: str) -> int:
    return int(key.rpartition("#")[2])
