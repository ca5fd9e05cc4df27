"""Tells whether a data set has changed in the script's process.

A worker process keeps the copy of the data set that it was started with. A script may set an
attribute between epochs (a size, a difficulty): workers that live on would not see it.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from gpurun.knobs.loading.loader_fitness import attributes, named_outside

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
        outside = list(named_outside(owner))
        for name, value in (*attributes(owner), *outside):
            yield name, *_marks(value)
        for _, value in outside:
            if isinstance(value, CONFIGURATIONS):
                yield from (_marks(inner) for _, inner in attributes(value))


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
