"""A store in one SQLite file: several processes write in turn, a damaged file is set aside."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from gpurun.bench.store.database import (
    CorruptDatabase,
    Database,
    EmptyDatabase,
    T,
    Work,
    driver_line,
)
from gpurun.errors import GpurunError

BUSY_SECONDS = 1.0
"""How long SQLite itself waits for a lock; then it is asked again, so that Ctrl-C is heard."""
RETRY_SECONDS = 0.02

CORRUPT = ("not a database", "malformed", "could not decode to utf-8", "invalid page")
REMEDIES = {
    "readonly": "make the file and its folder writable, or name another folder with --out",
    "unable to open": "make its folder readable and writable, or name another one with --out",
    "full": "make room on that disk, or name another folder with --out",
    "disk i/o": "make room on that disk and look at its health, or name another folder with --out",
}
"""What to do, by what SQLite says."""


class SqliteDatabase(Database):
    """SQLite in WAL mode, where the file system has what that needs: readers and a writer at once.

    A lock is waited for as long as `patience` (seconds).
    """

    def __init__(self, path: Path, patience: float) -> None:
        self.path = path
        self.patience = patience
        self._identity: tuple[int, int] | None = None
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=os.fspath(path)),
            poolclass=NullPool,
            connect_args={"isolation_level": None, "timeout": min(patience, BUSY_SECONDS)},
        )
        sa.event.listen(engine, "begin", _begin)
        super().__init__(os.fspath(path), engine)

    def run(self, work: Work[T], *, write: bool = False) -> T:
        """As `Database.run`; `CorruptDatabase` and `EmptyDatabase` where the file is so."""
        self._identity = _identity(self.path)
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
            raise CorruptDatabase(said) from None
        if "no such table" in said:
            raise EmptyDatabase(said) from None
        remedy = next((todo for sign, todo in REMEDIES.items() if sign in said.lower()), None)
        if "locked" in said:
            said = f"locked by another process for more than {self.patience:g} s"
            remedy = "end what holds it, and try again"
        raise GpurunError(f"{self.name}: {said}", remedy or "mend it, or move it away") from None

    def set_aside(self) -> Path | None:
        """Give the damaged file another name, which is returned; None if another process did.

        Its write-ahead log goes with it, and first: a new file must not find that of an old one.
        """
        with _folder_lock(self.path.parent):
            if _identity(self.path) != self._identity:
                return None
            stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
            aside = self.path.with_name(f"{self.path.name}.corrupt-{stamp}")
            try:
                for suffix in ("-wal", "-shm", ""):
                    part = Path(f"{self.path}{suffix}")
                    if part.exists():
                        part.rename(f"{aside}{suffix}")
            except OSError as error:
                raise GpurunError(
                    f"{self.path} is corrupt and cannot be set aside: {error.strerror or error}",
                    "move it away yourself; its records are read again from their JSON files",
                ) from None
            return aside

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
        """Do `work`, again and again while the file is locked: not every wait is SQLite's own."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return work()
            except DBAPIError as error:
                if "locked" not in driver_line(error) or time.monotonic() >= deadline:
                    self.refuse(error)
            time.sleep(RETRY_SECONDS)


def documents_of(damaged: Path, table: str) -> Iterator[str]:
    """What can be read of the column `document` in a damaged file: from both ends to the damage.

    A row may come twice.
    """
    for order in ("ASC", "DESC"):
        with suppress(sqlite3.Error, UnicodeDecodeError):
            place = f"{damaged.absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(place, uri=True)) as connection:
                chosen = f'SELECT document FROM "{table}" ORDER BY rowid {order}'
                for (text,) in connection.execute(chosen):
                    if isinstance(text, str):  # damage may read as NULL
                        yield text


def _begin(connection: sa.Connection) -> None:
    """A writer asks for its turn at once: one that read before could no longer wait for it."""
    write = connection.get_execution_options().get("write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
