"""An index of records in one SQLite file, in which several processes write in turn."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

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
from gpurun.errors import GpurunError

BUSY_SECONDS = 1.0
"""SQLite's own wait for a lock; gpurun then tries again, so that Ctrl-C works meanwhile."""
RETRY_SECONDS = 0.02
MOST_FAILURES = 5
"""A disk that fails so often is reported as such."""

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
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=os.fspath(path)),
            poolclass=NullPool,
            connect_args={"isolation_level": None, "timeout": min(patience, BUSY_SECONDS)},
        )
        sa.event.listen(engine, "begin", _begin)
        super().__init__(os.fspath(path), engine)

    def run(self, work: Work[T], *, write: bool = False) -> T:
        """As `Database.run`; `UnusableDatabase` where the file must be made again."""
        return self._patiently(lambda: self._once(work, write))

    def prepare(self) -> None:
        """As `Database.prepare`, and switch the file to WAL mode."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise GpurunError(
                f"{self.path.parent} cannot be made: {error.strerror or error}",
                "name another folder with --out",
            ) from None
        super().prepare()
        self._patiently(self._use_wal)

    def lock_tables(self, connection: sa.Connection) -> None:
        """Nothing to do: who writes is alone."""

    def refuse(self, error: DBAPIError) -> NoReturn:
        """Raise what SQLite's refusal means."""
        said = driver_line(error)
        if any(sign in said.lower() for sign in CORRUPT):
            raise UnusableDatabase(said) from None
        if "no such table" in said:
            raise EmptyDatabase(said) from None
        remedy = next((todo for sign, todo in REMEDIES.items() if sign in said.lower()), None)
        if "locked" in said:
            said = f"locked by another process for more than {self.patience:g} s"
            remedy = "end the process that holds it, and try again"
        raise GpurunError(f"{self.name}: {said}", remedy or "fix it, or move it away") from None

    def discard(self, why: UnusableDatabase) -> None:
        """Remove the file. Its write-ahead log goes first: a new file must not find an old one."""
        with _folder_lock(self.path.parent):
            try:
                for suffix in ("-wal", "-shm", ""):
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            except OSError as error:
                raise GpurunError(
                    f"{self.path}: {why}, and it cannot be removed: {error.strerror or error}",
                    "remove it yourself; it is made again from the JSON files of its records",
                ) from None

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


def _begin(connection: sa.Connection) -> None:
    """A writer asks for its turn at once: one that read before could no longer wait for it."""
    write = connection.get_execution_options().get("write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
