"""Locks of folders that belong to a living process: folders of a killed one can be found and
removed.

A folder `X` is held by the file `X.lock` beside it. The owner holds a lock on it (`flock`). The
kernel ends the lock with the process, however it ends. The lock also works between containers that
share a folder but not their process ids. The file names the process by id and start time too: for
people, and for file systems that know no locks (some of clusters).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

SUFFIX = ".lock"
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
"""Error numbers of `flock` on a file system without locks."""


@dataclass(frozen=True)
class Claim:
    """Who holds a folder, and for which repository (its common git folder).

    `start`: when the process started, in clock ticks since boot `boot`.
    """

    pid: int
    start: int | None
    boot: str
    repository: str


@contextmanager
def claimed(folder: Path, repository: Path) -> Iterator[Path]:
    """Hold `folder` (which is not made here) until the end of the block."""
    claim = Claim(os.getpid(), _start_of(os.getpid()), _boot(), str(repository))
    lock = folder.with_name(folder.name + SUFFIX)
    with _locked_file(lock, json.dumps(asdict(claim))):
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
    found: list[tuple[Path, Path]] = []
    files = []
    try:
        for lock in sorted(places.glob(f"*{SUFFIX}")):
            file = _take_over(lock)
            if file is None:
                continue
            files.append((lock, file))
            claim = _read(lock)
            repository = claim.repository if claim is not None else os.devnull
            found.append((lock.with_name(lock.name.removesuffix(SUFFIX)), Path(repository)))
        yield tuple(found)
    finally:
        for lock, file in files:
            if not lock.with_name(lock.name.removesuffix(SUFFIX)).exists():
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
    """
    file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                told = os.read(file, 20)
                yield int(told) if told.isdigit() else 0
                return
        os.truncate(file, 0)
        os.write(file, str(os.getpid()).encode())
        yield None
    finally:
        os.close(file)


def _lock(file: int) -> None:
    """Wait for the lock of an open file; where there are no locks, go on without."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


@contextmanager
def _locked_file(lock: Path, text: str) -> Iterator[None]:
    file = -1
    try:
        while True:
            file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            _lock(file)
            if _is_at(file, lock):
                break
            os.close(file)  # somebody took the empty file for a left one in that moment
        os.write(file, text.encode())
        yield
    finally:
        os.close(file)


def _take_over(lock: Path) -> int | None:
    """The open file, locked by us, of a process that is gone; None if it lives."""
    try:
        file = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        gone = _is_at(file, lock)
    except OSError as error:
        gone = error.errno in NO_LOCKS and _is_gone(_read(lock))
    if gone:
        return file
    os.close(file)
    return None


def _is_gone(claim: Claim | None) -> bool:
    """By process id and start time; what another machine may hold is left alone."""
    if claim is None or claim.start is None or claim.boot != _boot():
        return False
    return _start_of(claim.pid) != claim.start


def _read(lock: Path) -> Claim | None:
    try:
        return Claim(**json.loads(lock.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _start_of(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none, or a dead one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
