"""A store in a PostgreSQL database, by URL. No message repeats a password."""

from __future__ import annotations

from typing import NoReturn

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from gpurun.bench.store.database import Database, UnusableDatabase, driver_line
from gpurun.errors import GpurunError

CONNECT_SECONDS = 10
"""Seconds that a server may take to answer, unless the URL has `?connect_timeout=`."""
TABLES_LOCK = 0x67707572756E
"""The advisory lock of whoever makes or changes tables; the number is "gpurun"."""


class PostgresDatabase(Database):
    """A PostgreSQL database through psycopg 3. A lock is waited for as long as `patience`."""

    def __init__(self, url: sa.URL, patience: float) -> None:
        _check_driver()
        self.patience = patience
        self._secrets = _secrets(url)
        timeout = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_SECONDS}
        engine = sa.create_engine(
            url.set(drivername="postgresql+psycopg"), poolclass=NullPool, connect_args=timeout
        )
        sa.event.listen(engine, "begin", self._begin)
        super().__init__(shown(url), engine)

    def lock_tables(self, connection: sa.Connection) -> None:
        """Take the advisory lock, which ends with the transaction."""
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(TABLES_LOCK)))

    def discard(self, why: UnusableDatabase) -> None:
        """Refuse: the database holds other machines' records, so nothing in it is ever dropped."""
        todo = "fix that in the database, use the gpurun that made it, or name another store"
        raise GpurunError(f"{self.name}: {why}", todo) from None

    def refuse(self, error: DBAPIError) -> NoReturn:
        """Raise what the server, or its absence, means."""
        said = driver_line(error)
        for secret in self._secrets:
            said = said.replace(secret, "***")
        raise GpurunError(f"{self.name}: {said}", self._remedy(error)) from None

    def _remedy(self, error: DBAPIError) -> str:
        if error.connection_invalidated or getattr(error.orig, "sqlstate", None) is None:
            return (
                "check that the server runs there, and user, password and database in its URL"
                " (PGPASSWORD or ~/.pgpass keep the password out of it)"
            )
        return "fix that in the database, or name another store"

    def _begin(self, connection: sa.Connection) -> None:
        milliseconds = max(1, round(self.patience * 1000))
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {milliseconds}")


def shown(url: sa.URL) -> str:
    """A URL as it may be printed: without its password and its options, which may hold one."""
    plain = sa.URL.create("postgresql", url.username, None, url.host, url.port, url.database)
    return plain.render_as_string()


def _secrets(url: sa.URL) -> list[str]:
    options = [url.query.get(name) for name in ("password", "sslpassword")]
    return [str(secret) for secret in (url.password, *options) if secret]


def _check_driver() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        reason = "" if error.name == "psycopg" else f" ({' '.join(str(error).split())})"
        raise GpurunError(
            f"a store in PostgreSQL needs the driver psycopg 3, which is not usable here{reason}",
            'pip install "gpurun-torch[postgres]"',
        ) from None
