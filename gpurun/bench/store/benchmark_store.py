"""The records of benchmarks: JSON files, and a database in which they are found.

A record is written as a file first and enters the database afterwards. The first use of a store
enters the files that have no row: those of a database that is new, or was locked or out of reach.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from importlib import import_module
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from gpurun.bench.store.database import APPLICATION_ID, Database, T, Work
from gpurun.bench.store.record_files import (
    UNREADABLE,
    Document,
    Kept,
    document_text,
    parsed,
    read_new,
    write_file,
)
from gpurun.errors import GpurunError
from gpurun.records.bench.benchmark import (
    AcceptedBaseline,
    BenchmarkPurpose,
    BenchmarkRecord,
    new_id,
    utc_moment,
    utc_text,
)
from gpurun.records.parse_json import parse_document

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


class BenchmarkStore:
    """Records and accepted baselines. The database is first touched when it is first needed.

    Every method raises `GpurunError` where the database or the folder refuses.
    """

    def __init__(self, database: Database, notice: Callable[[str], None]) -> None:
        self.name = database.name
        """The database's name in messages; it holds no password."""
        self._database = database
        self._notice = notice
        self._filled = False

    def add(self, document: Document) -> None:
        """Keep a document: its file, then its row. One whose id is there is left as it is."""
        path = write_file(self._database.home, document)
        try:
            self._run(lambda connection: insert_new(connection, [document]))
        except GpurunError as error:
            kept = f"{error.what} (nothing is lost: {path} is kept, and entered later)"
            raise GpurunError(kept, error.todo) from None

    def get(self, record_id: str) -> BenchmarkRecord | None:
        """The record of this id, None if there is none."""
        found = self._read(BenchmarkRecord, [TABLE.c.id == searchable(record_id)])
        return found[0] if found else None

    def query(
        self,
        benchmark: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        purposes: Iterable[BenchmarkPurpose] | None = None,
    ) -> list[BenchmarkRecord]:
        """The records that fit, oldest first; None does not ask.

        `since` counts, `until` does not; both know their offset from UTC.
        """
        asked = _of(benchmark)
        if since is not None:
            asked.append(TABLE.c.time >= since.astimezone(timezone.utc))
        if until is not None:
            asked.append(TABLE.c.time < until.astimezone(timezone.utc))
        if purposes is not None:
            asked.append(TABLE.c.purpose.in_([p.value for p in purposes]))
        return self._read(BenchmarkRecord, asked)

    def accept(self, record_id: str, accepted_by: str, reason: str) -> AcceptedBaseline:
        """Make a record the baseline of its benchmark, fingerprint and branch from now on."""
        record = self.get(record_id)
        if record is None:
            raise GpurunError(f"{self.name} has no record {record_id}", "see gpurun bench history")
        if record.error or (record.samples_per_second, record.step_time_ms) == (None, None):
            what = f"record {record_id} has no throughput to compare with: {record.error or 'none'}"
            raise GpurunError(what, "accept a run that completed")
        now = datetime.now(timezone.utc)
        baseline = AcceptedBaseline(
            id=new_id(now),
            record=record.id,
            benchmark=record.benchmark,
            fingerprint=record.fingerprint.key,
            branch=record.branch,
            commit=record.commit,
            accepted_by=accepted_by,
            time=utc_text(now),
            reason=reason,
        )
        self.add(baseline)
        return baseline

    def baselines(self, benchmark: str | None = None) -> list[AcceptedBaseline]:
        """All that were accepted, oldest first: of what is asked for, the last one holds."""
        return self._read(AcceptedBaseline, _of(benchmark))

    def _read(self, cls: type[Kept], asked: Iterable[sa.ColumnElement[bool]]) -> list[Kept]:
        """The documents of a kind for which all of `asked` holds, oldest first."""
        chosen = sa.select(TABLE.c.document).where(TABLE.c.schema == cls.schema, *asked)
        chosen = chosen.order_by(TABLE.c.time, TABLE.c.id)
        texts = self._run(lambda connection: list(connection.scalars(chosen)))
        try:
            return [parsed(cls, parse_document(text)) for text in texts]
        except (*UNREADABLE, TypeError) as error:  # some damage reads as NULL
            what = f"{self.name} holds a record that this gpurun cannot read: {error}"
            raise GpurunError(what, f"upgrade gpurun; or {self._database.cure}") from None

    def _run(self, work: Work[T]) -> T:
        """Do `work` in the database, after all that has a file has a row."""
        if self._database.run(make_table) or not self._filled:
            self._fill()
            self._filled = True
        return self._database.run(work)

    def _fill(self) -> None:
        """Enter what has a file and no row."""
        ids = sa.select(TABLE.c.schema, TABLE.c.id)
        known = self._database.run(lambda connection: {(*row,) for row in connection.execute(ids)})
        unreadable: list[str] = []
        lacking = list(read_new(self._database.home, known, unreadable))
        if unreadable:
            more = f", and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
            self._notice(f"a record cannot be read and is left out: {unreadable[0]}{more}")
        if lacking:
            self._database.run(lambda connection: insert_new(connection, lacking))


def _of(benchmark: str | None) -> list[sa.ColumnElement[bool]]:
    return [] if benchmark is None else [TABLE.c.benchmark == searchable(benchmark)]


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
    if connection.dialect.name == "sqlite" and _schema(connection) != _own_schema(connection):
        raise ValueError(f"its table {TABLE.name} is a view, or has parts that are not gpurun's")
    return True


def _schema(connection: sa.Connection) -> set[str]:
    """What made the table in an SQLite file, and all that acts on it: triggers, indexes, views."""
    asked = "SELECT sql FROM sqlite_master WHERE lower(tbl_name) = ? AND sql IS NOT NULL"
    return {" ".join(sql.split()) for (sql,) in connection.exec_driver_sql(asked, (TABLE.name,))}


def _own_schema(connection: sa.Connection) -> set[str]:
    parts: list[ExecutableDDLElement] = [CreateTable(TABLE), *map(CreateIndex, TABLE.indexes)]
    return {" ".join(str(part.compile(dialect=connection.dialect)).split()) for part in parts}


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
