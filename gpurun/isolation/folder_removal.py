"""Removes folders: of any permissions, and those that killed processes left behind.

A removal goes from open folder to open folder. So it follows no link, whatever is renamed
meanwhile, and leaves alone what is mounted below. What another process left is removed only if it
bears gpurun's mark: anybody may make a folder of any name.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpurun.records.spec import DRAFT
from gpurun.rundir import OWN_FOLDERS, other_runs

YOUNG_SECONDS = 60.0
"""A younger folder that nobody holds may be one that is just being made."""

MARK = ".made-by-gpurun"
"""A link in a folder. Its text is the folder's inode, so no copy and no checkout has a valid one.
"""

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def mark(folder: Path) -> None:
    """Let a later process remove this folder, which this one has just made."""
    with suppress(OSError):  # a file system without links: nothing counts as left behind there
        os.symlink(str(folder.lstat().st_ino), folder / MARK)


def is_marked(folder: Path) -> bool:
    """True if gpurun made this very folder, as this user; False for a link."""
    try:
        status, own_mark = folder.lstat(), (folder / MARK).lstat()
        inode = os.readlink(folder / MARK)
    except OSError:
        return False
    ours = {status.st_uid, own_mark.st_uid} == {os.geteuid()}
    return ours and stat.S_ISDIR(status.st_mode) and inode == str(status.st_ino)


def discard(folder: Path) -> None:
    """Remove all of it, unreadable folders included. A link stays, and so does its target."""
    with suppress(OSError, RecursionError):
        _remove(os.fspath(folder), None, "")


def hold(folder: Path) -> int:
    """Keep others from `discard_abandoned` for this folder: until the file that this opens is
    closed, or the process ends in whatever way.
    """
    handle = os.open(folder, os.O_RDONLY | _FOLDER)
    with suppress(OSError):  # a file system without locks: nothing counts as abandoned there
        fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def discard_abandoned(holder: Path, leftovers: Iterable[Path]) -> None:
    """Remove those of these folders that gpurun made, if no living process holds `holder`."""
    try:
        handle = os.open(holder, os.O_RDONLY | _FOLDER)
    except OSError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for folder in filter(is_marked, leftovers):
            discard(folder)
    except OSError:  # somebody holds it
        pass
    finally:
        os.close(handle)


def sweep(place: Path, prefix: str) -> None:
    """Remove the folders in `place` with this prefix whose processes were killed."""
    old = time.time() - YOUNG_SECONDS
    for folder in place.glob(f"{prefix}*"):
        with suppress(OSError):  # another launcher removes it
            if folder.lstat().st_mtime < old:
                discard_abandoned(folder, [folder])


def new_scratch(place: Path, prefix: str) -> Path:
    """A new folder in `place`; those with this prefix whose processes were killed go first."""
    import tempfile  # which a supervisor has no use for

    sweep(place, prefix)
    made = Path(os.path.realpath(tempfile.mkdtemp(prefix=prefix, dir=place)))
    mark(made)
    return made


@contextmanager
def scratch_folder(place: Path, prefix: str) -> Iterator[Path]:
    """A new folder in `place` that is held, and removed in the end."""
    folder = new_scratch(place, prefix)
    held = hold(folder)
    try:
        yield folder
    finally:
        discard(folder)
        os.close(held)


def _remove(name: str, parent: int | None, parents_mount: str) -> None:
    """Remove a folder by its name in the open folder `parent`.

    Its mark goes last: until then an interrupted removal is taken up again.
    """
    handle = os.open(name, os.O_PATH | _FOLDER, dir_fd=parent)
    try:
        place, mount = f"/proc/self/fd/{handle}", _mount(handle)
        if parent is not None and mount != parents_mount:
            return
        with suppress(OSError):
            os.chmod(place, stat.S_IRWXU)
        with os.scandir(place) as found:
            entries = sorted(found, key=lambda entry: entry.name == MARK)
        for entry in entries:
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    _remove(entry.name, handle, mount)
                else:
                    os.unlink(entry.name, dir_fd=handle)
    finally:
        os.close(handle)
    os.rmdir(name, dir_fd=parent)


def _mount(handle: int) -> str:
    """The number of the mount in which an open folder lies."""
    return Path(f"/proc/self/fdinfo/{handle}").read_text().partition("mnt_id:")[2].split()[0]


OLD_SECONDS = 60.0
"""A living process has changed its draft since, or holds a lock on it."""


def sweep_drafts(run: Path) -> None:
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
                for draft in (path for path in folder.iterdir() if path.name.startswith(DRAFT)):
                    _remove_unlocked(draft, old)


def _remove_unlocked(draft: Path, old: float) -> None:
    status = draft.lstat()
    ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    if ours and status.st_mtime < old:
        with suppress(OSError), open(draft, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.unlink()
