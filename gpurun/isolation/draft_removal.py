"""Removes the half-written files that killed processes left in the folder of records."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gpurun.rundir import DRAFT, OWN_FOLDERS, other_runs

OLD_SECONDS = 60.0
"""A living process has changed its draft since, or holds a lock on it."""


def sweep(run: Path) -> None:
    """Remove the drafts of a run that is over, and those of killed runs beside it."""
    remove_drafts([run], 0.0)
    killed = (other for other in other_runs(run) if not (other / "result.json").exists())
    remove_drafts([*killed, *(run.parent.parent / name for name in OWN_FOLDERS)])


def remove_drafts(folders: Iterable[Path], seconds: float = OLD_SECONDS) -> None:
    """Remove drafts that are older than so many seconds, and of which no process holds a lock.

    Only this user's plain files count, and only in folders that lie behind no link.
    """
    old = time.time() - seconds
    for folder in folders:
        with suppress(OSError):  # no such folder, or somebody else's
            if folder.resolve() == folder.absolute():
                for draft in (path for path in folder.iterdir() if DRAFT.fullmatch(path.name)):
                    _remove_unlocked(draft, old)


def _remove_unlocked(draft: Path, old: float) -> None:
    status = draft.lstat()
    ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    if ours and status.st_mtime < old:
        with suppress(OSError), open(draft, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.unlink()
