"""The tables of a store. Each row holds its whole document, and beside it what is searched by."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from gpurun.bench.store.record_files import Document, document_text
from gpurun.records.bench.benchmark import AcceptedBaseline, BenchmarkRecord, utc_moment

METADATA = sa.MetaData()

SCHEMA = sa.Table("gpurun_schema", METADATA, sa.Column("version", sa.Integer, primary_key=True))
"""One row: the version of the tables."""
VERSION = 2
"""Counts changes of these tables. A change after a release needs a way to bring old tables in
PostgreSQL forward; an index in SQLite is made again."""

BENCHMARKS = sa.Table(
    "gpurun_benchmarks",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("benchmark", sa.Text, nullable=False),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("commit_hash", sa.Text),
    sa.Column("branch", sa.Text),
    sa.Column("dirty", sa.Boolean),
    sa.Column("time", sa.DateTime(timezone=True), nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("samples_per_second", sa.Double),
    sa.Column("step_time_ms", sa.Double),
    sa.Column("gpu_utilization_percent", sa.Double),
    sa.Column("peak_memory_bytes", sa.BigInteger),
    sa.Column("energy_joules", sa.Double),
    sa.Column("device", sa.Text),
    sa.Column("device_count", sa.BigInteger),
    sa.Column("batch_size", sa.Double),
    sa.Column("purpose", sa.Text, nullable=False, server_default="bench"),
    sa.Column("document", sa.Text, nullable=False),
    sa.Index("gpurun_benchmarks_history", "benchmark", "fingerprint", "time"),
)
"""`step_time_ms` is the mean. Figures are NULL where they were not measured."""

BASELINES = sa.Table(
    "gpurun_baselines",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("record", sa.Text, nullable=False),
    sa.Column("benchmark", sa.Text, nullable=False),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("branch", sa.Text),
    sa.Column("commit_hash", sa.Text),
    sa.Column("accepted_by", sa.Text, nullable=False),
    sa.Column("time", sa.DateTime(timezone=True), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
)

TABLES: dict[type[Document], sa.Table] = {BenchmarkRecord: BENCHMARKS, AcceptedBaseline: BASELINES}

Row = tuple[sa.Table, dict[str, Any]]


def version_of(connection: sa.Connection) -> int:
    """The version of the tables that are there, 0 for none."""
    if not sa.inspect(connection).has_table(SCHEMA.name):
        return 0
    return connection.scalar(sa.select(sa.func.max(SCHEMA.c.version))) or 0


def make_tables(connection: sa.Connection) -> None:
    """Make the tables, in a transaction that keeps other makers out, unless one was faster.

    A table of the same name that is there already is somebody else's: that is an error.
    """
    if version_of(connection) == 0:
        METADATA.create_all(connection, checkfirst=False)
        connection.execute(sa.insert(SCHEMA).values(version=VERSION))


def insert_new(connection: sa.Connection, rows: Iterable[Row]) -> None:
    """Add what is not there yet, by id."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert
    else:
        from sqlalchemy.dialects.sqlite import insert  # type: ignore[assignment]
    for table, row in rows:
        connection.execute(insert(table).values(row).on_conflict_do_nothing())


def rows_of(documents: Iterable[Document]) -> list[Row]:
    """Their rows, in an order in which no two writers can wait for each other."""
    rows = [(TABLES[type(document)], _row(document)) for document in documents]
    return sorted(rows, key=lambda row: (row[0].name, row[1]["id"]))


def _row(document: Document) -> dict[str, Any]:
    text = document_text(document)
    plain = json.loads(text)  # here NaN is None, as it is for whoever reads the document
    table = TABLES[type(document)]
    row = {column.name: plain[column.name] for column in table.c if column.name in plain}
    row |= {"document": text, "commit_hash": plain["commit"], "time": utc_moment(document.time)}
    if isinstance(document, BenchmarkRecord):
        row["fingerprint"] = document.fingerprint.key
        step = plain["step_time_ms"]
        row["step_time_ms"] = None if step is None else step["mean"]
    return {name: searchable(value) for name, value in row.items()}


def searchable(value: Any) -> Any:
    """A value that a database takes: paths may hold bytes that are no UTF-8, and zeros."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "replace").decode().replace("\0", "?")
