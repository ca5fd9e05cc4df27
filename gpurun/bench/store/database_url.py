"""The database that a URL names."""

from __future__ import annotations

import re
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from gpurun.bench.store.database import Database
from gpurun.errors import GpurunError

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
