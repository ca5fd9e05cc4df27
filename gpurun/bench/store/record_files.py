"""One JSON file for each record and each accepted baseline: an index of them is made from these.

<home>/benchmarks/<id>.json
<home>/benchmarks/accepted/<id>.json
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from gpurun.errors import GpurunError
from gpurun.records.bench.benchmark import (
    BENCHMARK_SCHEMA,
    EXPORT_SCHEMA,
    ID,
    AcceptedBaseline,
    BenchmarkExport,
    BenchmarkRecord,
    check_kept,
    utc_moment,
)
from gpurun.records.codec import JsonValue, RecordError, from_json, to_json
from gpurun.rundir import json_text, read_json, refuse_links, write_whole

UNREADABLE = (ValueError, OverflowError, RecursionError)
"""Errors of text that is no record: of JSON, of UTF-8, of fields, of absurd figures."""

Document = BenchmarkRecord | AcceptedBaseline
"""What a store keeps. The `schema` of a document names its kind."""
Kept = TypeVar("Kept", bound=Document)
FOLDERS: dict[type[Document], str] = {
    BenchmarkRecord: "benchmarks",
    AcceptedBaseline: "benchmarks/accepted",
}


def write_file(home: Path, document: Document) -> Path:
    """Keep a document, whole or not at all; one that is there stays as it is."""
    path = home / FOLDERS[type(document)] / f"{document.id}.json"
    refuse_links(*(home / folder for folder in FOLDERS.values()))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_whole(path, document_text(document))
    except OSError as error:
        what = f"{path} could not be written: {error.strerror or error}"
        todo = "make room and grant access there, or name another folder with --out"
        raise GpurunError(what, todo) from None
    return path


def read_new(home: Path, known: set[tuple[str, str]], unreadable: list[str]) -> Iterator[Document]:
    """The documents not `known` by schema and id; `unreadable` gets the faults of the others."""
    refuse_links(*(home / folder for folder in FOLDERS.values()))
    for cls, folder in FOLDERS.items():
        for path in sorted((home / folder).glob("*.json")):
            if (cls.schema, path.stem) in known or not ID.fullmatch(path.stem):
                continue
            try:
                document = parsed(cls, read_json(path))
                if document.id != path.stem:
                    raise RecordError(f"$.id: {document.id!r} is not the file's name")
                yield document
            except (OSError, *UNREADABLE) as error:
                unreadable.append(f"{path}: {error}")


def document_text(document: Document) -> str:
    """The text that is kept of a document, in files and databases alike.

    It is read back first: what could not be (a step time that is no number, say) is never kept.
    """
    text = json_text(to_json(document))
    parsed(type(document), json.loads(text))
    return text


def parsed(cls: type[Kept], document: JsonValue) -> Kept:
    """A record or baseline of a JSON value; `RecordError` names the place that is off."""
    found = from_json(cls, document)
    check_kept(found)
    return found


def read_records(path: Path) -> list[BenchmarkRecord]:
    """The records of a file, or of all files of a folder, oldest first; `GpurunError` if one cannot
    be read, or has none."""
    try:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    except OSError:  # a name that is too long, a folder that may not be looked into
        files = [path]
    found = (record for file in files for record in _records_of(file))
    return sorted(found, key=lambda record: (utc_moment(record.time), record.id))


def _records_of(path: Path) -> tuple[BenchmarkRecord, ...]:
    try:
        document = read_json(path)
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema == EXPORT_SCHEMA:
            records = from_json(BenchmarkExport, document).records
        elif schema == BENCHMARK_SCHEMA:
            records = (from_json(BenchmarkRecord, document),)
        else:
            raise ValueError(f"its schema is {schema!r}, not {BENCHMARK_SCHEMA} or {EXPORT_SCHEMA}")
        for one in records:
            document_text(one)
        return records
    except OSError as error:
        fault = f"cannot be read: {error.strerror or error}"
    except UNREADABLE as error:
        fault = f"is no record of gpurun: {' '.join(str(error).split())}"
    todo = "name a file of gpurun bench --json, or of .gpurun/benchmarks"
    raise GpurunError(f"{path} {fault}", todo)
