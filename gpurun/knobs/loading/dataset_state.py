"""Whether a data set has changed: a number for what it is like now."""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

from gpurun.knobs.loading.dataset_attributes import PLAIN, attributes

SMALL_BYTES = 1 << 16
"""The content of larger arrays is not compared."""
SIZED = (list, tuple, dict, set, frozenset, bytearray, deque)
GENERATORS = {("random", "Random"), ("numpy", "Generator"), ("numpy", "RandomState")}
"""Package and class of random generators, whose draws change them."""


def dataset_state(dataset: object, collate_fn: object) -> int | None:
    """A number that differs once a data set, or what it is collated by, has changed.

    gpurun looks at what both hold and at what their code names: see `dataset_attributes`. It
    compares plain values, whether anything else is the same object, the length of containers, the
    version of tensors, the content of small arrays, the state of random generators, and how often
    a function with an `lru_cache` was computed. None if that cannot be told.
    """
    try:
        reached = (*attributes(dataset), *attributes(collate_fn))
        return hash((id(collate_fn), *((name, *_marks(value)) for name, value in reached)))
    except Exception:  # whatever an attribute of the script's raises
        return None


def _marks(value: Any) -> tuple[Any, ...]:
    if isinstance(value, PLAIN):
        return (value,)
    try:
        if isinstance(value, SIZED):
            return id(value), len(value)
        if hasattr(value, "_version") and hasattr(value, "data_ptr"):
            return value.data_ptr(), value._version
        if hasattr(value, "__array_interface__") and value.nbytes <= SMALL_BYTES:
            return (value.tobytes(),)
        if hasattr(value, "cache_info") and hasattr(value, "cache_clear"):
            computed = value.cache_info()
            return id(value), computed.misses, computed.currsize
        cls = type(value)
        if (cls.__module__.partition(".")[0], cls.__name__) in GENERATORS:
            return (pickle.dumps(value),)
    except Exception:  # tensors of inference mode have no version, sparse ones no address
        pass
    return (id(value),)
