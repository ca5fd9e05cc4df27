"""Whether a data set or a sampler has changed: a number for each thing that it reaches."""

from __future__ import annotations

import os
import pickle
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from gpurun.knobs.loading.dataset_attributes import PLAIN, attributes, opened_file

SMALL_BYTES = 1 << 16
"""The content of larger arrays is not compared."""
SIZED = (list, tuple, dict, set, frozenset, bytearray, deque)
MOST_NAMES = 3
CLOCK_SECONDS = 0.05
"""File systems tell the time more coarsely than clocks."""
GENERATORS = {
    ("random", "Random"), ("numpy", "Generator"), ("numpy", "RandomState"), ("torch", "Generator"),
}  # fmt: skip
"""Package and class of random generators, whose draws change them."""

NOTHING = (None,)
"""An attribute without a value is as one that is not there yet."""

State = tuple[tuple[str, int], ...]
"""The name of each thing that was reached, and a number that differs once it has changed."""


def dataset_state(*owners: object, draws: bool = True, since: float | None = None) -> State | None:
    """What a data set, the function that it is collated by, or a sampler is like now.

    gpurun looks at what they hold and at what their code names: see `dataset_attributes`. It
    compares plain values, whether anything else is the same object, the length of containers, the
    version of tensors, the content of small arrays, the state of random generators (with `draws`),
    how often a function with an `lru_cache` was computed, and for which version of its file an open
    file stands. One that was opened late is no change, if its file has not changed `since` then (a
    time as `time.time` tells). None if that cannot be told.
    """
    try:
        themselves = [(type(owner).__name__, owner) for owner in owners]
        reached = [*themselves, *(pair for owner in owners for pair in attributes(owner))]
        seen = reached if draws else [pair for pair in reached if not _draws(pair[1])]
        marked = ((name, _marks(value, since)) for name, value in seen)
        return tuple((name, hash(marks)) for name, marks in marked if marks != NOTHING)
    except Exception:  # whatever an attribute of the script's raises
        return None


def changed_names(before: State | None, now: State | None) -> list[str]:
    """The names of what differs between two states; none if one of them is not known."""
    if before is None or now is None or before == now:
        return []
    one, other = Counter(before), Counter(now)
    moved = (new for old, new in zip(before, now, strict=False) if old != new)
    apart = [*(other - one), *(one - other)] or moved
    return [name for name, _ in apart]


def listed(names: Iterable[str]) -> str:
    """The first few names, as a text."""
    return ", ".join([*dict.fromkeys(names)][:MOST_NAMES])


def _draws(value: object) -> bool:
    cls = type(value)
    return (cls.__module__.partition(".")[0], cls.__name__) in GENERATORS


def _marks(value: Any, since: float | None) -> tuple[Any, ...]:
    if isinstance(value, PLAIN):
        return (value,)
    try:
        if (file := opened_file(value)) is not None:
            found = os.stat(file)
            unchanged = since is not None and found.st_ctime < since - CLOCK_SECONDS
            return NOTHING if unchanged else (file, found.st_ino, found.st_ctime_ns)
        if isinstance(value, SIZED):
            return id(value), len(value)
        if hasattr(value, "_version") and hasattr(value, "data_ptr"):
            return value.data_ptr(), value._version
        if hasattr(value, "__array_interface__") and value.nbytes <= SMALL_BYTES:
            return (value.tobytes(),)
        if hasattr(value, "cache_info") and hasattr(value, "cache_clear"):
            computed = value.cache_info()
            return id(value), computed.misses, computed.currsize
        if _draws(value):
            torchs = hasattr(value, "get_state") and hasattr(value, "initial_seed")
            return (value.get_state().numpy().tobytes() if torchs else pickle.dumps(value),)
    except Exception:  # tensors of inference mode have no version, sparse ones no address
        pass
    return (id(value),)
