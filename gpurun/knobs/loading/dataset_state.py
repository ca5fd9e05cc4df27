"""Tells whether a data set has changed in the script's process.

A worker process keeps the copy of the data set that it was started with. A script may set an
attribute between epochs (a size, a difficulty): workers that live on would not see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpurun.knobs.loading.loader_fitness import attributes, named_outside

PLAIN = (bool, int, float, complex, str, bytes, type(None))
SMALL_BYTES = 1 << 16
"""The content of larger arrays is not compared."""


def dataset_state(dataset: object, collate_fn: object) -> int:
    """A number that differs once a data set, or what it is collated by, has changed.

    gpurun looks at what both hold, and at the class attributes and globals that they name. It
    compares plain values, the length of containers, the version of tensors and the content of small
    arrays. 0 if an attribute cannot be read.
    """
    parts = []
    try:
        for owner in (dataset, collate_fn):
            for name, value in (*attributes(owner), *named_outside(owner)):
                parts.append((name, *_marks(value)))
        return hash(tuple(parts))
    except Exception:  # whatever an attribute of the script's raises
        return 0


def _marks(value: Any) -> Iterator[Any]:
    if isinstance(value, PLAIN):
        yield value
    elif isinstance(value, (list, tuple, dict, set, frozenset, bytearray)):
        yield len(value)
    elif hasattr(value, "_version") and hasattr(value, "data_ptr"):
        yield from (value.data_ptr(), value._version)
    elif hasattr(value, "__array_interface__") and value.nbytes <= SMALL_BYTES:
        yield value.tobytes()
