"""Tests run side by side on the cores there are; one that is marked `alone` runs with no other."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

MOST_WORKERS = 8
"""Tests start launchers, ranks and loader workers of their own: more at once help nobody."""
GATE = Path(__file__)
MACHINE = Path(__file__).parent / "conftest.py"
"""Files that are there, to lock: all runs of the tests of one checkout take turns."""


def workers() -> int:
    """As many as this process may use cores."""
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS)


@contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    """Hold the machine for one test: with others, or alone.

    Who waits to be alone holds the gate, so that no other test starts before it.
    """
    with ExitStack() as held:
        with locked(GATE, fcntl.LOCK_EX):
            held.enter_context(locked(MACHINE, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield


@contextmanager
def locked(path: Path, how: int) -> Iterator[None]:
    """Hold a file that is there locked, `how`: `LOCK_EX` or `LOCK_SH`."""
    with path.open("rb") as file:
        fcntl.flock(file, how)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough: a forked child holds it too
