"""Locks of folders that belong to a living process: folders of a killed one can be found and
removed. A lock is a plain file of this user's: no link is followed, no FIFO is opened.

A folder `X` is held by the file `X.lock` beside it, which names its repository. The owner holds a
lock on it (`flock`). The kernel ends the lock with the process, however it ends. The lock also
works between containers that share a folder. Some file systems of clusters have no locks. There no
folder counts as abandoned, and the user removes that of a killed comparison.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpurun.errors import GpurunError

SUFFIX = ".lock"
_PLAIN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
LONGEST = 4096
"""Bytes of a repository's path."""


@contextmanager
def claimed(folder: Path, repository: Path) -> Iterator[Path]:
    """Hold `folder` (which is not made here) until the end of the block.

    `repository`: its common git folder.
    """
    lock = folder.with_name(folder.name + SUFFIX)
    with _locked_file(lock, str(repository)):
        try:
            yield folder
        finally:
            if not folder.exists():
                lock.unlink(missing_ok=True)


@contextmanager
def abandoned(places: Path) -> Iterator[tuple[tuple[Path, Path], ...]]:
    """The folders in `places` whose process is gone, each with its repository, held meanwhile.

    Folders that no longer exist at the end of the block are forgotten.
    """
    taken = [(lock, _take_over(lock)) for lock in sorted(places.glob(f"*{SUFFIX}"))]
    files = [(lock, file) for lock, file in taken if file is not None]
    try:
        yield tuple((_folder(lock), _repository(file)) for lock, file in files)
    finally:
        for lock, file in files:
            if not _folder(lock).exists():
                lock.unlink(missing_ok=True)
            os.close(file)


@contextmanager
def alone_with(folder: Path) -> Iterator[tuple[int, ...]]:
    """Have no other comparison in such a block with `folder` (which needs no file for it).

    git's own commands on worktrees trip over one that is being made or removed beside them. A child
    that is given the open files that this yields is in the block until its own end, too.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # the folder is gone
        yield ()
        return
    try:
        _lock(handle)
        yield (handle,)
    finally:
        os.close(handle)


@contextmanager
def sole_user(lock: Path) -> Iterator[int | None]:
    """Have the file `lock`, which is made here and stays, for this process alone.

    Yields None, or the id of the process that has it (0 where that is not known): then not ours.
    `GpurunError` where there can be no such file.
    """
    try:
        file = os.open(lock, _PLAIN | os.O_CREAT, 0o644)
    except OSError as error:
        what = f"{lock} cannot be opened: {error.strerror or error}"
        raise GpurunError(what, "remove it, or name another folder with --out") from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            told = os.read(file, 20)
            yield int(told) if told.isdigit() else 0
            return
        except OSError:
            pass  # a file system without locks
        os.truncate(file, 0)
        os.write(file, str(os.getpid()).encode())
        yield None
    finally:
        os.close(file)


def _lock(file: int) -> None:
    """Wait for the lock of an open file; where there are no locks, go on without."""
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX)


@contextmanager
def _locked_file(lock: Path, text: str) -> Iterator[None]:
    file = -1
    try:
        while True:
            file = os.open(lock, _PLAIN | os.O_CREAT, 0o644)
            _lock(file)
            if _is_at(file, lock):
                break
            os.close(file)  # somebody took the empty file for a left one in that moment
        os.write(file, os.fsencode(text))
        yield
    finally:
        os.close(file)


def _take_over(lock: Path) -> int | None:
    """The open file, locked by us, of a process that is gone; None if it lives, or is not ours."""
    try:
        file = os.open(lock, _PLAIN)
    except OSError:
        return None
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(file, lock) and _is_own(file):
            return file
    os.close(file)
    return None


def _folder(lock: Path) -> Path:
    return lock.with_name(lock.name.removesuffix(SUFFIX))


def _repository(file: int) -> Path:
    return Path(os.fsdecode(os.pread(file, LONGEST, 0)) or os.devnull)


def _is_own(file: int) -> bool:
    status = os.fstat(file)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except FileNotFoundError:
        return False
