"""Versions of the tables: new ones are made as they are now, old ones are brought forward."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from gpurun.bench.store.database_tables import METADATA, SCHEMA
from gpurun.errors import GpurunError


def _purposes(connection: sa.Connection) -> None:
    """Version 2: searches and self-tests can be told from what a history consists of.

    Until then every record was a plain benchmark. The statement is written out, for the tables of
    today may be others.
    """
    connection.exec_driver_sql(
        "ALTER TABLE gpurun_benchmarks ADD COLUMN purpose TEXT NOT NULL DEFAULT 'bench'"
    )


STEPS: tuple[Callable[[sa.Connection], None], ...] = (_purposes,)
"""STEPS[n] makes version n + 2 of version n + 1."""

VERSION = len(STEPS) + 1


def version_of(connection: sa.Connection) -> int:
    """The version of the tables that are there, 0 for none."""
    if not sa.inspect(connection).has_table(SCHEMA.name):
        return 0
    return connection.execute(sa.select(sa.func.max(SCHEMA.c.version))).scalar() or 0


def check_known(version: int, store: str) -> None:
    """`GpurunError` for tables of a later gpurun: they are left as they are."""
    if version > VERSION:
        raise GpurunError(
            f"{store} has schema version {version}, and this gpurun knows those up to {VERSION}",
            "upgrade gpurun, or name another store",
        )


def migrate(connection: sa.Connection, store: str) -> None:
    """Bring the tables to `VERSION`, in a transaction that keeps other migrations out."""
    found = version_of(connection)
    check_known(found, store)
    if found == VERSION:
        return
    if found == 0:
        METADATA.create_all(connection)
    else:
        for step in STEPS[found - 1 :]:
            step(connection)
    connection.execute(sa.delete(SCHEMA))
    connection.execute(sa.insert(SCHEMA).values(version=VERSION))
