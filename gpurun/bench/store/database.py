"""A database as the store uses it: work in transactions, and errors in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from gpurun.bench.store.migrations import VERSION, check_known, migrate, version_of
from gpurun.errors import GpurunError

T = TypeVar("T")
Work = Callable[[sa.Connection], T]
"""What is done in one transaction. It may be done again, from the start, where that failed."""


class EmptyDatabase(Exception):
    """The tables are gone since they were seen: another process is making them again."""


class UnusableDatabase(Exception):
    """It cannot be read, or holds tables of another version. `damaged`: because of a fault."""

    def __init__(self, what: str, *, damaged: bool = True) -> None:
        self.damaged = damaged
        super().__init__(what)


class Database:
    """A database by its engine. `name` is what messages call it and holds no password."""

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
        """Make the tables, or bring them forward; those of a later gpurun are left untouched."""
        version = self.run(version_of)
        check_known(version, self.name)
        if version < VERSION:
            self.run(self._migrate, write=True)

    def discard(self, why: UnusableDatabase) -> None:
        """Make room for a new one, if this one is a mere index; else `GpurunError`."""
        raise GpurunError(f"{self.name}: {why}", "mend that row in the database") from None

    def refuse(self, error: DBAPIError) -> NoReturn:
        """Raise what a failure of the database means to the user."""
        raise GpurunError(f"{self.name}: {driver_line(error)}", "mend it, or name another store")

    def lock_tables(self, connection: sa.Connection) -> None:
        """Let no other process make or change tables until the transaction ends."""
        raise NotImplementedError

    def _migrate(self, connection: sa.Connection) -> None:
        self.lock_tables(connection)
        migrate(connection, self.name)

    def _once(self, work: Work[T], write: bool) -> T:
        with self._engine.execution_options(write=write).begin() as connection:
            return work(connection)


def driver_line(error: DBAPIError) -> str:
    """What the driver says, without the statement, in one line."""
    return " ".join(str(error.orig).split())
