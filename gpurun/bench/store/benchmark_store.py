"""The records of benchmarks: JSON files, and a database in which they are found.

A record is written as a file first and enters the database afterwards. The first use of a store
enters the files that have no row: those of a database that is new, or was locked or out of reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timezone

import sqlalchemy as sa

from gpurun.bench.store.database import Database, T, Work
from gpurun.bench.store.record_files import (
    UNREADABLE,
    Document,
    Kept,
    parsed,
    read_new,
    write_file,
)
from gpurun.bench.store.records_table import TABLE, insert_new, make_table, searchable
from gpurun.errors import GpurunError
from gpurun.records.bench.benchmark import (
    AcceptedBaseline,
    BenchmarkPurpose,
    BenchmarkRecord,
    new_id,
    utc_text,
)
from gpurun.records.parse_json import parse_document


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
