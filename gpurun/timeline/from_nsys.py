"""Import an SQLite export of Nsight Systems, schemas 3.0 to 3.25.

An export holds the whole environment of the traced process among its strings. Only the strings
that a kernel, a call or a range refers to are read.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from gpurun.errors import GpurunError
from gpurun.timeline import model
from gpurun.timeline.columns import Columns
from gpurun.timeline.event_tables import NO_STREAM, clock_mark, phase_name, timeline_of, told_stream
from gpurun.timeline.kernel_groups import kernel_group, uses_tensor_cores
from gpurun.timeline.limits import LONGEST_TEXT, MOST_PROCESSES
from gpurun.timeline.model import MALFORMED, CopyKind, launch_dimensions, malformed
from gpurun.timeline.runtime_calls import plain_name

NEWEST_SCHEMA = (3, 25)
QUERY_OPERATIONS = 1000
"""Of SQLite's machine, between two moments at which python may interrupt it."""
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RANGES = "NVTX_EVENTS"
_META = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_COPY_KINDS = {1: CopyKind.H2D, 2: CopyKind.D2H, 8: CopyKind.D2D, 10: CopyKind.D2D}
_PAGEABLE: dict[int | None, bool] = {0: True, 1: False}
"""By the kind of the host's memory."""
_DEVICE_COLUMNS = ("id", "name", "smCount", "computeMajor", "computeMinor")
_OWNERS = {CALLS: "globalTid", RANGES: "globalTid"}
"""Columns that name a row's process; in other tables it is `globalPid`."""
_PROCESS = "(({column} >> 24) & 16777215)"
_THREAD = "(globalTid & 16777215)"
_RAN = "start, end, deviceId, streamId, COALESCE(correlationId, 0)"


def read(path: Path, process: int | None = None) -> tuple[model.Timeline, ...]:
    """One timeline for each traced process that did something which gpurun reads.

    `process`: the id of the only one that is asked for, which may not be among them. `GpurunError`
    for a file that is no export, is damaged, or holds nothing of the kind.
    """
    foreign = GpurunError(
        f"{path} is no export of Nsight Systems",
        "make one: nsys export -t sqlite --lazy=false REPORT.nsys-rep",
    )
    try:
        with open(path, "rb") as file:
            if not file.read(16).startswith(b"SQLite format 3"):
                raise foreign
        place = f"{path.resolve().as_uri()}?mode=ro&immutable=1"  # else SQLite may write beside it
        with closing(sqlite3.connect(place, uri=True)) as database:
            _limit(database)
            export = _Export(database)
            if not export.is_one:
                raise foreign
            if export.has_names_twice():  # a join with the names would make rows
                raise malformed(path, "an id stands twice in its table StringIds")
            found = export.processes()
            if len(found) > MOST_PROCESSES:
                raise malformed(path, f"it names over {MOST_PROCESSES:,} processes")
            timelines = tuple(
                export.timeline(each) for each in found if process is None or each == process
            )
    except (sqlite3.Error, *MALFORMED) as error:
        raise malformed(path, f"{type(error).__name__}: {error}") from None
    if not timelines and process is None:
        raise GpurunError(
            f"{path} holds no kernel, no call of CUDA and no NVTX range",
            "record the training's own process, with -t cuda,nvtx",
        )
    return timelines


def _limit(database: sqlite3.Connection) -> None:
    """Keep single values small, and let gpurun's own limits interrupt a long query."""
    if sys.version_info >= (3, 11):
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_TEXT)
    database.set_progress_handler(lambda: None, QUERY_OPERATIONS)


class _Export:
    """One database. Tables and columns differ between versions; absent ones are not measured."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._tables = {
            name for (name,) in self._rows("SELECT name FROM sqlite_master WHERE type = 'table'")
        }

    @property
    def is_one(self) -> bool:
        """It is a database of Nsight Systems."""
        return "StringIds" in self._tables and not self._tables.isdisjoint(_META)

    def has_names_twice(self) -> bool:
        """Two of its names have the same id."""
        twice = "SELECT 1 FROM StringIds GROUP BY id HAVING COUNT(*) > 1 LIMIT 1"
        return any(self._rows(twice))

    def processes(self) -> list[int]:
        """Process ids, ascending, of all that left something which is read."""
        found: set[int] = set()
        for table in self._tables.intersection((KERNELS, COPIES, CALLS, RANGES)):
            owner = _OWNERS.get(table, "globalPid")
            process = _PROCESS.format(column=owner)
            rows = self._rows(f"SELECT DISTINCT {process} FROM {table} WHERE {owner} NOTNULL")
            found.update(number for (number,) in rows)
        return sorted(found)

    def timeline(self, process: int) -> model.Timeline:
        """All that is known of one process."""
        marks: list[tuple[int, int]] = []
        sources: dict[str, tuple[type[Any], tuple[str, ...], Iterator[tuple[Any, ...]]]] = {
            "ranges": (model.Range, (RANGES,), self._ranges(process, marks)),
            "kernels": (model.Kernel, (KERNELS,), self._kernels(process)),
            "copies": (model.Copy, (COPIES, KERNELS), self._copies(process)),
            "awaited": (model.Awaited, (SYNCS,), self._awaited(process)),
            "runtime_calls": (model.RuntimeCall, (CALLS,), self._calls(process)),
        }
        found: dict[str, Columns[Any]] = {}
        for name, (kind, needed, rows) in sources.items():
            if self._tables.intersection(needed):
                found[name] = Columns(kind)
                for row in rows:
                    found[name].add(*row)
        return timeline_of("nsys", found, marks, devices=self._devices(), notes=self._notes())

    def _kernels(self, process: int) -> Iterator[tuple[Any, ...]]:
        columns = f"{_RAN}, value, gridX, gridY, gridZ, blockX, blockY, blockZ"
        join = " JOIN StringIds ON id = demangledName"
        for *ran, name, x, y, z, bx, by, bz in self._select(KERNELS, process, columns, join):
            told = kernel_group(name), uses_tensor_cores(name)
            shapes = launch_dimensions(x, y, z), launch_dimensions(bx, by, bz)
            yield *ran, model.KernelKind(name, *told, *shapes)

    def _copies(self, process: int) -> Iterator[tuple[Any, ...]]:
        columns = f"{_RAN}, bytes, copyKind, srcKind, dstKind"
        for *row, number, source, target in self._select(COPIES, process, columns):
            kind = _COPY_KINDS.get(number, CopyKind.OTHER)
            host = {CopyKind.H2D: source, CopyKind.D2H: target}.get(kind)
            yield *row, kind, _PAGEABLE.get(host)
        for row in self._select(SETS, process, f"{_RAN}, bytes"):
            yield *row, CopyKind.SET, None

    def _calls(self, process: int) -> Iterator[tuple[Any, ...]]:
        columns = f"start, end, {_THREAD}, COALESCE(correlationId, 0), value"
        for *row, name in self._select(CALLS, process, columns, " JOIN StringIds ON id = nameId"):
            yield *row, plain_name(name)

    def _awaited(self, process: int) -> Iterator[tuple[Any, ...]]:
        """The streams for which calls wait. Of events no export tells whose work they wait for."""
        if {"streamId", "eventId"} <= self._columns(SYNCS):
            columns = "start, end, COALESCE(correlationId, 0), streamId"
            no_event = f" AND COALESCE(eventId, {NO_STREAM}) = {NO_STREAM}"
            for *row, stream in self._select(SYNCS, process, columns, where=no_event):
                yield *row, 0, told_stream(stream), None

    def _ranges(self, process: int, marks: list[tuple[int, int]]) -> Iterator[tuple[Any, ...]]:
        """NVTX ranges; the marks that tie the clocks are added to `marks`."""
        with_ids = "textId" in self._columns(RANGES)
        text = "COALESCE(text, value)" if with_ids else "text"
        join = " LEFT JOIN StringIds ON id = textId" if with_ids else ""
        columns = f"start, end, {_THREAD}, {text}"
        for begin, end, thread, name in self._select(RANGES, process, columns, join):
            mark = clock_mark(name or "")
            if mark is not None:
                marks.append((begin, mark))
            elif end is not None and name:
                yield begin, end, thread, phase_name(name)

    def _devices(self) -> tuple[model.Device, ...] | None:
        if "TARGET_INFO_GPU" not in self._tables:
            return None
        columns = self._columns("TARGET_INFO_GPU")
        chosen = ", ".join(name if name in columns else "NULL" for name in _DEVICE_COLUMNS)
        rows = self._rows(f"SELECT {chosen} FROM TARGET_INFO_GPU")
        return tuple(
            model.Device(number, name or "", count, None if None in (a, b) else (a, b))
            for number, name, count, a, b in rows
        )

    def _notes(self) -> tuple[str, ...]:
        table, notes = next(name for name in _META if name in self._tables), []
        rows = dict(self._rows(f"SELECT name, value FROM {table} WHERE name LIKE '%VERSION%'"))
        schema = str(rows.get("EXPORT_SCHEMA_VERSION", "")).split(".")[:2]
        numbers = tuple(int(part) for part in schema if part.isdigit())
        if len(numbers) == 2 and numbers > NEWEST_SCHEMA:
            newer = "is newer than those gpurun was tested on"
            notes.append(f"schema {'.'.join(schema)} of Nsight Systems {newer}")
        if KERNELS not in self._tables and CALLS in self._tables:
            notes.append("Nsight Systems recorded calls of CUDA and no kernels")
        return tuple(notes)

    def _select(
        self, table: str, process: int, columns: str, join: str = "", *, where: str = ""
    ) -> Iterator[Any]:
        """One process's rows, none of an absent table; older exports of one name no owner."""
        if table not in self._tables:
            return iter(())
        owner = _OWNERS.get(table, "globalPid")
        own = f" AND {_PROCESS.format(column=owner)} = {int(process)}"
        own = own if owner in self._columns(table) else ""
        return self._rows(f"SELECT {columns} FROM {table}{join} WHERE 1{own}{where}")

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self._rows(f"PRAGMA table_info({table})")}

    def _rows(self, query: str) -> Iterator[Any]:
        return iter(self._database.execute(query))
