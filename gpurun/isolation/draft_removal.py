"""Removes the half-written files that killed processes left in the folder of records."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gpurun.rundir import DRAFT, other_runs

OLD_SECONDS = 60.0
"""A living process has changed its draft since, or holds a lock on it."""
BESIDE_RUNS = ("tuned", "probes", "bisections", "benchmarks", "benchmarks/accepted")


def sweep(run: Path) -> None:
    """Remove the drafts of a run that is over, and those of killed runs beside it."""
    remove_drafts([run], 0.0)
    killed = (other for other in other_runs(run) if not (other / "result.json").exists())
    remove_drafts([*killed, *(run.parent.parent / name for name in BESIDE_RUNS)])


def remove_drafts(folders: Iterable[Path], seconds: float = OLD_SECONDS) -> None:
    """Remove drafts that are older than so many seconds, and of which no process holds a lock."""
    old = time.time() - seconds
    for folder in folders:
        with suppress(OSError):  # no such folder, or somebody else's
            for draft in (path for path in folder.iterdir() if DRAFT.fullmatch(path.name)):
                if draft.lstat().st_mtime < old:
                    _remove_unlocked(draft)


def _remove_unlocked(draft: Path) -> None:
    with suppress(OSError), open(draft, "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.unlink()
