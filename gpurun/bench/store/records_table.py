"""The one table of a store. A row holds its whole document, and beside it what is searched by."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import sqlalchemy as sa

from gpurun.bench.store.record_files import Document, document_text
from gpurun.records.bench.benchmark import BenchmarkRecord, utc_moment

APPLICATION_ID = 0x67707275
"""The number ("gpru") in an SQLite file's head by which it is known as gpurun's."""
ALONE = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "SELECT pg_advisory_xact_lock(113732704433518)"}
"""Statements that keep other makers of the table out until the transaction ends. The number of the
advisory lock is "gpurun" in ASCII."""
DOUBLES = (
    "samples_per_second", "step_time_ms", "gpu_utilization_percent", "energy_joules", "batch_size",
)  # fmt: skip

TABLE = sa.Table(
    "gpurun_benchmarks",
    sa.MetaData(),
    *(sa.Column(name, sa.Text, primary_key=True) for name in ("schema", "id")),
    *(sa.Column(name, sa.Text, nullable=False) for name in ("benchmark", "fingerprint")),
    *(sa.Column(name, sa.Text) for name in ("commit", "branch", "status", "purpose", "device")),
    *(sa.Column(name, sa.Double) for name in DOUBLES),
    *(sa.Column(name, sa.BigInteger) for name in ("peak_memory_bytes", "device_count")),
    sa.Column("dirty", sa.Boolean),
    sa.Column("time", sa.DateTime(timezone=True), nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Index("gpurun_benchmarks_history", "benchmark", "time"),
)
"""Columns are fields of the document; `fingerprint` is its key, `step_time_ms` the mean. NULL: not
measured. The names of the columns are the table's version: a new meaning needs a new name."""
OURS = sa.DDL(f"PRAGMA application_id = {APPLICATION_ID}")  # type: ignore[no-untyped-call]
sa.event.listen(TABLE, "after_create", OURS.execute_if(dialect="sqlite"))


def make_table(connection: sa.Connection) -> bool:
    """Make the table, unless it is there (False); `ValueError` for one that is another's."""
    if _is_made(connection):
        return False
    connection.exec_driver_sql(ALONE[connection.dialect.name])
    if not _is_made(connection):
        TABLE.create(connection, checkfirst=False)
    return True


def _is_made(connection: sa.Connection) -> bool:
    inspector = sa.inspect(connection)
    if not inspector.has_table(TABLE.name):
        return False
    if {column["name"] for column in inspector.get_columns(TABLE.name)} != set(TABLE.c.keys()):
        raise ValueError(f"its table {TABLE.name} is of another version of gpurun, or not gpurun's")
    return True


def insert_new(connection: sa.Connection, documents: Iterable[Document]) -> None:
    """Add a row for each document that has none, in an order in which writers cannot deadlock."""
    insert = import_module(f"sqlalchemy.dialects.{connection.dialect.name}").insert
    rows = sorted(map(_row, documents), key=lambda row: (row["schema"], row["id"]))
    connection.execute(insert(TABLE).on_conflict_do_nothing(), rows)


def _row(document: Document) -> dict[str, Any]:
    text = document_text(document)
    plain = json.loads(text)  # here NaN is None, as it is for whoever reads the document
    row = {column.name: plain.get(column.name) for column in TABLE.c}
    row |= {"document": text, "time": utc_moment(document.time)}
    if isinstance(document, BenchmarkRecord):
        row["fingerprint"] = document.fingerprint.key
        row["step_time_ms"] = (plain["step_time_ms"] or {}).get("mean")
    return {name: searchable(value) for name, value in row.items()}


def searchable(value: Any) -> Any:
    """A value that a database takes: paths may hold bytes that are no UTF-8, and zeros."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "replace").decode().replace("\0", "?")
