"""An index of records in one SQLite file, in which several processes write in turn.

The file bears gpurun's number (`application_id`). SQLite never opens a file without it, since that
alone may change it: any file can be named by mistake. No file is removed, either: one that cannot
be used is renamed.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from gpurun.bench.store.database import (
    Database,
    EmptyDatabase,
    T,
    UnusableDatabase,
    Work,
    driver_line,
)
from gpurun.bench.store.database_tables import METADATA, make_tables
from gpurun.errors import GpurunError

BUSY_SECONDS = 1.0
"""SQLite's own wait for a lock; gpurun then tries again, so that Ctrl-C works meanwhile."""
RETRY_SECONDS = 0.02
MOST_FAILURES = 5
"""A disk that fails so often is reported as such."""

MAGIC = b"SQLite format 3\0"
APPLICATION_ID, APPLICATION_ID_AT = 0x67707275, 68
"""The number ("gpru") and its place in the head of the file, which has 100 bytes."""

CORRUPT = ("not a database", "malformed", "could not decode to utf-8", "invalid page")
REMEDIES = {
    "readonly": "make the file and its folder writable, or name another folder with --out",
    "unable to open": "make its folder readable and writable, or name another one with --out",
    "full": "make room on that disk, or name another folder with --out",
    "disk i/o": "make room on that disk and look at its health, or name another folder with --out",
}
"""Remedies, by a part of SQLite's message."""


class SqliteDatabase(Database):
    """SQLite in WAL mode, where the file system has what that needs: readers and a writer at once.

    A lock is waited for as long as `patience` (seconds).
    """

    def __init__(self, path: Path, patience: float) -> None:
        self.path = path
        self.patience = patience
        self._inode = 0
        super().__init__(os.fspath(path), _engine(path, patience, "rw"))

    def run(self, work: Work[T], *, write: bool = False) -> T:
        """As `Database.run`; `UnusableDatabase` where the file must be made again."""
        return self._patiently(lambda: self._once(work, write))

    def prepare(self) -> None:
        """As `Database.prepare`, in a file that is new or gpurun's, and switch it to WAL mode."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise GpurunError(
                f"{self.path.parent} cannot be made: {error.strerror or error}",
                "name another folder with --out",
            ) from None
        if not os.path.lexists(self.path):
            self._patiently(self._make)
        self._inode = _check(self.path)
        super().prepare()
        self._patiently(self._use_wal)

    def lock_tables(self, connection: sa.Connection) -> None:
        """Nothing to do: who writes is alone."""

    def refuse(self, error: DBAPIError) -> NoReturn:
        """Raise what SQLite's refusal means."""
        said = driver_line(error)
        if any(sign in said.lower() for sign in CORRUPT):
            raise UnusableDatabase(said) from None
        if "no such table" in said or not os.path.lexists(self.path):
            raise EmptyDatabase(said) from None
        if "locked" in said:
            raise _locked(self.name, self.patience) from None
        remedy = next((todo for sign, todo in REMEDIES.items() if sign in said.lower()), None)
        raise GpurunError(f"{self.name}: {said}", remedy or "fix it, or move it away") from None

    def discard(self, why: UnusableDatabase) -> None:
        """Rename the file, unless another process has done so meanwhile."""
        try:
            with _folder_lock(self.path.parent, self.patience):
                if _check(self.path) == self._inode:
                    self._set_aside()
        except EmptyDatabase:
            pass
        except OSError as error:
            raise GpurunError(
                f"{self.path}: {why}, and it cannot be renamed: {error.strerror or error}",
                "move it away yourself; it is made again from the JSON files of its records",
            ) from None

    def _set_aside(self) -> None:
        """Rename the database and its log. The log goes first: no new file may find an old one."""
        aside = f"{self.path}.unusable-{os.urandom(3).hex()}"
        for suffix in ("-wal", "-shm", "-journal", ""):
            with suppress(FileNotFoundError):
                os.rename(f"{self.path}{suffix}", f"{aside}{suffix}")

    def _make(self) -> None:
        """Make the file elsewhere and give it its name at the end: nobody meets half of it.

        It is for its owner alone, as all records in which a secret was masked.
        """
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}.{os.urandom(3).hex()}")
        try:
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with _engine(draft, self.patience, "rw").begin() as connection:
                make_tables(connection)
                connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
            with _folder_lock(self.path.parent, self.patience):
                if not os.path.lexists(self.path):
                    self._set_aside()  # the log of a file that is gone
                    _name(draft, self.path)
        finally:
            draft.unlink(missing_ok=True)

    def _use_wal(self) -> None:
        """Switch the file for good; outside of any transaction, as SQLite wants it."""
        connection = self._engine.raw_connection()
        try:
            cursor = connection.cursor()
            if cursor.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                cursor.execute("PRAGMA journal_mode=WAL")
        except Exception as error:
            raise DBAPIError("PRAGMA journal_mode=WAL", None, error) from None
        finally:
            connection.close()

    def _patiently(self, work: Callable[[], T]) -> T:
        """Do `work`, again and again while the file is locked: not every wait is SQLite's own.

        A disk that fails is asked again, too: a file that another process removes to make it again
        looks like one.
        """
        deadline, failures = time.monotonic() + self.patience, 0
        while True:
            try:
                return work()
            except DBAPIError as error:
                said = driver_line(error)
                failures += "disk I/O" in said
                again = failures < MOST_FAILURES if "disk I/O" in said else "locked" in said
                if not again or time.monotonic() >= deadline:
                    self.refuse(error)
            time.sleep(RETRY_SECONDS)


def _engine(path: Path, patience: float, mode: str) -> sa.Engine:
    """An engine for this very file; SQLite makes none unless the mode is "rwc"."""
    place = f"file:{quote(os.fsencode(path))}?mode={mode}"
    timeout = min(patience, BUSY_SECONDS)

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(place, uri=True, isolation_level=None, timeout=timeout)

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=NullPool)
    sa.event.listen(engine, "begin", _begin)
    return engine


def _check(path: Path) -> int:
    """The inode of an index of gpurun's; `GpurunError` for any other file."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(path, flags), "rb") as file:
            status, head = os.fstat(file.fileno()), file.read(100)
    except FileNotFoundError:
        raise EmptyDatabase(f"{path} is gone") from None
    except OSError as error:
        todo = "make it a readable file, or name another store"
        raise GpurunError(f"{path}: {error.strerror or error}", todo) from None
    number = int.from_bytes(head[APPLICATION_ID_AT : APPLICATION_ID_AT + 4], "big")
    is_index = stat.S_ISREG(status.st_mode) and head.startswith(MAGIC)
    if not is_index or not (number == APPLICATION_ID or (number == 0 and _has_our_tables(path))):
        raise GpurunError(
            f"{path} is no index of benchmarks that gpurun made; it stays as it is",
            "name another file with --store, or move this one away",
        )
    return status.st_ino


def _has_our_tables(path: Path) -> bool:
    """True for an index from before it bore a number: it has gpurun's tables and nothing else."""
    place = f"file:{quote(os.fsencode(path))}?mode=ro&immutable=1"  # which leaves all as it is
    try:
        with closing(sqlite3.connect(place, uri=True)) as database:
            asked = "SELECT name FROM sqlite_master WHERE type <> 'index'"
            return {name for (name,) in database.execute(asked)} == set(METADATA.tables)
    except sqlite3.Error:
        return False


def _name(draft: Path, path: Path) -> None:
    """Give a finished file its name, unless another file has it."""
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        os.rename(draft, path)


def _begin(connection: sa.Connection) -> None:
    """A writer asks for its turn at once: one that read before could no longer wait for it."""
    write = connection.get_execution_options().get("write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


@contextmanager
def _folder_lock(folder: Path, patience: float) -> Iterator[None]:
    """Hold the lock of a folder; `GpurunError` if another process does not let go of it."""
    handle, deadline = os.open(folder, os.O_RDONLY), time.monotonic() + patience
    try:
        with suppress(OSError):  # a file system without locks
            while not _is_locked(handle):
                if time.monotonic() >= deadline:
                    raise _locked(os.fspath(folder), patience)
                time.sleep(RETRY_SECONDS)
        yield
    finally:
        os.close(handle)


def _locked(what: str, patience: float) -> GpurunError:
    return GpurunError(
        f"{what}: locked by another process for more than {patience:g} s",
        "end the process that holds it, and try again",
    )


def _is_locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
