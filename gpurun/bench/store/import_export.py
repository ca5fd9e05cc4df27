"""A store as one JSON document, out and in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpurun.bench.store.record_files import UNREADABLE, Document, document_text
from gpurun.errors import GpurunError
from gpurun.records.bench.benchmark import (
    BASELINE_SCHEMA,
    BENCHMARK_SCHEMA,
    EXPORT_SCHEMA,
    AcceptedBaseline,
    BenchmarkExport,
    BenchmarkRecord,
)
from gpurun.records.codec import from_json, to_json
from gpurun.rundir import write_json

KINDS: dict[str, type[Any]] = {
    EXPORT_SCHEMA: BenchmarkExport,
    BENCHMARK_SCHEMA: BenchmarkRecord,
    BASELINE_SCHEMA: AcceptedBaseline,
}
"""The kinds of documents that can be imported."""


def write_export(path: Path, export: BenchmarkExport) -> None:
    """Write the document, whole or not at all."""
    try:
        write_json(path, to_json(export))
    except OSError as error:
        raise GpurunError(
            f"{path} could not be written: {error.strerror or error}", "name another file"
        ) from None


def read_import(path: Path) -> list[Document]:
    """The checked documents of a file; `GpurunError` names the first fault."""
    try:
        return read_documents(path)
    except GpurunError as error:
        raise GpurunError(f"{error.what}; nothing was imported", error.todo) from None


def read_documents(path: Path) -> list[Document]:
    """The documents of a file; `GpurunError` if it is unreadable, or is no record or export."""
    try:
        return _checked(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    except json.JSONDecodeError as error:
        reason = f"is not valid JSON: line {error.lineno} column {error.colno}"
    except UNREADABLE as error:
        reason = f"is no export of gpurun: {' '.join(str(error).split())}"
    raise GpurunError(f"{path} {reason}", "name a file that gpurun exported")


def _checked(document: Any) -> list[Document]:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema not in tuple(KINDS):  # which a list, too, may be asked of
        raise ValueError(f"its schema is {schema!r}, not one of {', '.join(KINDS)}")
    found = from_json(KINDS[schema], document)
    documents = [*found.records, *found.baselines] if schema == EXPORT_SCHEMA else [found]
    for one in documents:
        document_text(one)
    return documents
