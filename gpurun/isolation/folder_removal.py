"""Removes folders: of any permissions, and those that killed processes left behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

YOUNG_SECONDS = 60.0
"""A younger folder that nobody holds may be one that is just being made."""


def discard(folder: Path) -> None:
    """Remove all of it, unreadable folders included."""
    for place, names, _ in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if not os.path.islink(path):
                try:
                    os.chmod(path, 0o700)
                except OSError:
                    pass
    shutil.rmtree(folder, ignore_errors=True)


def hold(folder: Path) -> int:
    """Keep others from `discard_abandoned` for this folder: until the file that this opens is
    closed, or the process ends in whatever way.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):  # a file system without locks: nothing counts as abandoned there
        fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def discard_abandoned(holder: Path, leftovers: Iterable[Path]) -> None:
    """Remove these folders if no living process holds `holder`."""
    try:
        handle = os.open(holder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for folder in leftovers:
            discard(folder)
    except OSError:  # somebody holds it
        pass
    finally:
        os.close(handle)


def sweep_scratch(place: Path, prefix: str) -> None:
    """Remove the folders with this prefix in `place` whose processes were all killed."""
    old = time.time() - YOUNG_SECONDS
    for folder in place.glob(f"{prefix}*"):
        with suppress(OSError):  # another launcher removes it
            status = folder.lstat()
            if status.st_uid == os.geteuid() and status.st_mtime < old:
                discard_abandoned(folder, [folder])
