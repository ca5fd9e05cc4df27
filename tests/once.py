"""What several tests look at is made once in a run, however many processes run them."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.turns import locked

Made = TypeVar("Made")


def once(folders: pytest.TempPathFactory, name: str, make: Callable[[Path], Made]) -> Made:
    """What `make` returns for a fresh folder: made by whoever asks first, unpickled by the others.

    `name` tells it from all else that is made so. Where making fails, who asks next tries again.
    """
    own = folders.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    kept = shared / f"once-{name}.pickle"
    lock = kept.with_suffix(".lock")
    lock.touch()
    with locked(lock, fcntl.LOCK_EX):
        if not kept.exists():
            kept.write_bytes(pickle.dumps(make(folders.mktemp(name))))
        made: Made = pickle.loads(kept.read_bytes())
    return made
