"""Records from a file: one record, or several in one document."""

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
from gpurun.records.codec import from_json
from gpurun.rundir import read_json

KINDS: dict[str, type[Any]] = {
    EXPORT_SCHEMA: BenchmarkExport,
    BENCHMARK_SCHEMA: BenchmarkRecord,
    BASELINE_SCHEMA: AcceptedBaseline,
}
"""The kinds of documents that hold records."""


def read_documents(path: Path) -> list[Document]:
    """The documents of a file; `GpurunError` if it is unreadable, or holds no records."""
    try:
        return _checked(read_json(path))
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    except json.JSONDecodeError as error:
        reason = f"is not valid JSON: line {error.lineno} column {error.colno}"
    except UNREADABLE as error:
        reason = f"is no record of gpurun: {' '.join(str(error).split())}"
    raise GpurunError(
        f"{path} {reason}", "name a file of gpurun bench --json, or of .gpurun/benchmarks"
    )


def _checked(document: Any) -> list[Document]:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema not in tuple(KINDS):  # which a list, too, may be asked of
        raise ValueError(f"its schema is {schema!r}, not one of {', '.join(KINDS)}")
    found = from_json(KINDS[schema], document)
    documents = [*found.records, *found.baselines] if schema == EXPORT_SCHEMA else [found]
    for one in documents:
        document_text(one)
    return documents
