"""A database as the store uses it: work in transactions, and errors in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError

from gpurun.bench.store.database_tables import VERSION, make_tables, version_of
from gpurun.errors import GpurunError

T = TypeVar("T")
Work = Callable[[sa.Connection], T]
"""One transaction's work. The store repeats it from the start if the transaction fails."""


class EmptyDatabase(Exception):
    """The tables are gone, to be made again here or by another process."""


class UnusableDatabase(Exception):
    """The database cannot be used as it is."""


class Database:
    """A database by its engine. `name` is for messages and holds no password."""

    name: str

    def __init__(self, name: str, engine: sa.Engine) -> None:
        self.name = name
        self._engine = engine

    def run(self, work: Work[T], *, write: bool = False) -> T:
        """Do `work` in a transaction of its own; `GpurunError` where the database refuses.

        `write`: it changes something. Each call has a connection of its own, so that nothing is
        held in between and a forked process shares none.
        """
        try:
            return self._once(work, write)
        except DBAPIError as error:
            self.refuse(error)

    def prepare(self) -> None:
        """Make the tables, if there are none; those of another gpurun make an index empty."""
        version = self.run(version_of)
        if version == 0:
            self.run(self._make_tables, write=True)
        elif version != VERSION:
            raise UnusableDatabase(
                f"its tables have version {version}, and this gpurun knows version {VERSION}"
            )

    def discard(self, why: UnusableDatabase) -> None:
        """Make room for a new database, or raise `GpurunError`: only an index may make room."""
        raise NotImplementedError

    def refuse(self, error: DBAPIError) -> NoReturn:
        """Raise `GpurunError` with the database's reason and a remedy."""
        raise NotImplementedError

    def lock_tables(self, connection: sa.Connection) -> None:
        """Let no other process make tables until the transaction ends."""
        raise NotImplementedError

    def _make_tables(self, connection: sa.Connection) -> None:
        self.lock_tables(connection)
        make_tables(connection)

    def _once(self, work: Work[T], write: bool) -> T:
        with self._engine.execution_options(write=write).begin() as connection:
            return work(connection)


def driver_line(error: DBAPIError) -> str:
    """The driver's message without the statement, in one line."""
    return " ".join(str(error.orig).split())


FILE = "bench.db"
FORMS = "write postgresql://user@host:5432/database or sqlite:///file.db"


def database_at(home: Path, url: str | None, patience: float) -> Database:
    """The database of this URL; by default an SQLite file in `home`. Nothing is opened yet.

    A relative file of `sqlite:///` is taken from the current folder. `GpurunError` for a URL that
    cannot be read: it may hold a password, so that no message repeats it.
    """
    from gpurun.bench.store.sqlite import SqliteDatabase

    if url is None:
        return SqliteDatabase(home / FILE, patience)
    kind = (re.match(r"([A-Za-z0-9+]+)://", url) or ("", ""))[1]
    parsed = _parsed(url)
    if kind in ("postgresql", "postgres", "postgresql+psycopg"):
        from gpurun.bench.store.postgres import PostgresDatabase

        return PostgresDatabase(parsed, patience)
    if kind == "sqlite":
        if not parsed.database or parsed.host:
            raise GpurunError("the store's URL names no SQLite file", FORMS)
        return SqliteDatabase(Path(parsed.database).absolute(), patience)
    raise GpurunError(f"gpurun keeps no store in {kind!r}" if kind else UNREADABLE, FORMS)


UNREADABLE = "the store's URL cannot be read"


def _parsed(url: str) -> sa.URL:
    authority = url.partition("?")[0]
    if authority.count("@") > 1:  # a part of the password would be taken for the host's name
        raise GpurunError(
            f"{UNREADABLE}: it has more than one @", "write an @ of user or password as %40"
        )
    try:
        return sa.make_url(url)
    except (ArgumentError, ValueError):
        raise GpurunError(UNREADABLE, FORMS) from None
