"""The records of benchmarks: JSON files, and a database in which they are found.

A record is written as a file first and enters the database afterwards. A database that was locked
or out of reach gets missing records from the files when it is next used. A database in SQLite is
only an index of the files beside it: one that is damaged, or of another version, is made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

import sqlalchemy as sa

from gpurun.bench.store import Notice
from gpurun.bench.store.database import Database, EmptyDatabase, T, UnusableDatabase, Work
from gpurun.bench.store.database_tables import (
    BASELINES,
    BENCHMARKS,
    TABLES,
    insert_new,
    rows_of,
    searchable,
)
from gpurun.bench.store.record_files import (
    Document,
    Kept,
    RecordFiles,
    parsed,
)
from gpurun.errors import GpurunError
from gpurun.records.bench.benchmark import (
    AcceptedBaseline,
    BenchmarkPurpose,
    BenchmarkRecord,
    new_id,
    utc_text,
)
from gpurun.records.codec import RecordError
from gpurun.records.parse_json import parse_document

AT_ONCE = 500
"""Ids asked for in one statement."""
ATTEMPTS = 8
"""Most attempts to make an index anew, since other processes may do so meanwhile."""


class BenchmarkStore:
    """Records and accepted baselines. The database is first touched when it is first needed.

    Every method raises `GpurunError` where the database or the folder refuses.
    """

    def __init__(self, database: Database, files: RecordFiles, notice: Notice) -> None:
        self._database = database
        self._files = files
        self._notice = notice
        self._connected = False

    @property
    def name(self) -> str:
        """The database's name in messages; it holds no password."""
        return self._database.name

    def connect(self) -> None:
        """Open the database, bring its tables forward and enter what it lacks: to fail early."""
        self._run(lambda connection: None)

    def add(self, record: BenchmarkRecord) -> None:
        """Keep a record; one whose id is there already is left as it is."""
        self._keep([record])

    def get(self, record_id: str) -> BenchmarkRecord | None:
        """The record of this id, None if there is none."""
        chosen = sa.select(BENCHMARKS.c.document).where(BENCHMARKS.c.id == searchable(record_id))
        found = self._documents(BenchmarkRecord, chosen)
        return found[0] if found else None

    def query(
        self,
        benchmark: str | None = None,
        fingerprint: str | None = None,
        branch: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        purposes: Iterable[BenchmarkPurpose] | None = None,
    ) -> list[BenchmarkRecord]:
        """The records that fit, oldest first; None does not ask.

        `fingerprint` is a key. `since` counts, `until` does not; both know their offset from UTC.
        `limit` keeps the newest.
        """
        chosen = _matching(BENCHMARKS, benchmark, fingerprint, branch)
        if since is not None:
            chosen = chosen.where(BENCHMARKS.c.time >= since.astimezone(timezone.utc))
        if until is not None:
            chosen = chosen.where(BENCHMARKS.c.time < until.astimezone(timezone.utc))
        if purposes is not None:
            chosen = chosen.where(BENCHMARKS.c.purpose.in_([p.value for p in purposes]))
        return self._documents(BenchmarkRecord, chosen.limit(limit))[::-1]

    def accept(self, record_id: str, accepted_by: str, reason: str) -> AcceptedBaseline:
        """Make a record the baseline of its benchmark, fingerprint and branch from now on."""
        record = self.get(record_id)
        if record is None:
            raise GpurunError(f"{self.name} has no record {record_id}", "see gpurun bench history")
        speeds = (record.samples_per_second, record.step_time_ms)
        if record.error is not None or speeds == (None, None):
            raise GpurunError(
                f"record {record_id} has no throughput to compare with: {record.error or 'none'}",
                "accept a run that completed",
            )
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
        self._keep([baseline])
        return baseline

    def baselines(
        self,
        benchmark: str | None = None,
        fingerprint: str | None = None,
        branch: str | None = None,
    ) -> list[AcceptedBaseline]:
        """All that were accepted, oldest first: of what is asked for, the last one holds."""
        chosen = _matching(BASELINES, benchmark, fingerprint, branch)
        return self._documents(AcceptedBaseline, chosen)[::-1]

    def _keep(self, documents: Sequence[Document]) -> None:
        """Write the files, then the rows, all or none."""
        paths = [self._files.write(document) for document in documents]
        try:
            rows = rows_of(documents)  # before the transaction, which keeps others waiting
            self._run(lambda connection: insert_new(connection, rows), write=True)
        except GpurunError as error:
            kept = paths[0] if len(paths) == 1 else self._files.folder
            raise GpurunError(
                f"{error.what} (nothing is lost: {kept} is kept, and entered later)", error.todo
            ) from None

    def _run(self, work: Work[T], *, write: bool = False) -> T:
        """Do `work` in the database, again where it had to be made anew first."""
        fault: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                self._prepare()
                return self._database.run(work, write=write)
            except EmptyDatabase as error:
                fault = error
            except UnusableDatabase as error:
                fault = error
                self._database.discard(error)
                again = f"{self.name} is made again from {self._files.folder}: {error}"
                self._notice(f"{again} (the old file is kept beside it)")
            self._connected = False
        raise GpurunError(f"{self.name}: {fault}", "look at its disk")

    def _prepare(self) -> None:
        if not self._connected:
            self._database.prepare()
            self._recover()
            self._connected = True

    def _recover(self) -> None:
        """Enter what has a file and no row."""
        lacking: list[Document] = []
        unreadable: list[str] = []
        for cls, table in TABLES.items():
            ids = self._files.ids(cls)
            lacking += self._files.read(cls, ids - self._entered(table, ids), unreadable)
        if unreadable:
            more = f", and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
            self._notice(f"a record cannot be read and is left out: {unreadable[0]}{more}")
        if lacking:
            rows = rows_of(lacking)
            self._database.run(lambda connection: insert_new(connection, rows), write=True)

    def _entered(self, table: sa.Table, ids: Iterable[str]) -> set[str]:
        """The ids that have a row."""
        wanted = sorted(ids)
        parts = [wanted[start : start + AT_ONCE] for start in range(0, len(wanted), AT_ONCE)]

        def look(connection: sa.Connection) -> set[str]:
            asked = (sa.select(table.c.id).where(table.c.id.in_(part)) for part in parts)
            return {name for one in asked for name in connection.scalars(one)}

        return self._database.run(look)

    def _documents(self, cls: type[Kept], chosen: sa.Select[Any]) -> list[Kept]:
        return self._run(
            lambda connection: [_read(cls, text) for text in connection.scalars(chosen)]
        )


def _matching(
    table: sa.Table, benchmark: str | None, fingerprint: str | None, branch: str | None
) -> sa.Select[Any]:
    """The documents of a table, newest first."""
    asked = {"benchmark": benchmark, "fingerprint": fingerprint, "branch": branch}
    conditions = [table.c[k] == searchable(v) for k, v in asked.items() if v is not None]
    newest = (table.c.time.desc(), table.c.id.desc())
    return sa.select(table.c.document).where(*conditions).order_by(*newest)


def _read(cls: type[Kept], text: str | None) -> Kept:
    if text is None:  # so SQLite reads some damage, and says nothing
        raise UnusableDatabase("a row holds no document")
    try:
        return parsed(cls, parse_document(text))
    except RecordError as error:
        raise GpurunError(
            f"a record of the store cannot be read: {error}",
            "upgrade gpurun: a newer version wrote it",
        ) from None
    except ValueError as error:
        raise UnusableDatabase(f"a row holds no JSON: {error}") from None
