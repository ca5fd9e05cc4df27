"""One JSON file for each record and each accepted baseline: a database is made again from them.

<home>/benchmarks/<id>.json
<home>/benchmarks/accepted/<id>.json
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from gpurun.errors import GpurunError
from gpurun.records.bench.benchmark import ID, AcceptedBaseline, BenchmarkRecord, check_kept
from gpurun.records.codec import JsonValue, RecordError, from_json, to_json
from gpurun.rundir import json_text, read_json, write_whole

FOLDER = "benchmarks"
ACCEPTED = "accepted"

UNREADABLE = (ValueError, OverflowError, RecursionError)
"""Errors of reading a file that is no document: of JSON, of UTF-8, of records, of absurd
figures."""

Document = BenchmarkRecord | AcceptedBaseline
"""The kinds of documents that a store keeps."""
Kept = TypeVar("Kept", bound=Document)


class RecordFiles:
    """The files below one home (`.gpurun/`); folders are made when something is written."""

    def __init__(self, home: Path) -> None:
        self.folder = home / FOLDER

    def place(self, document: Document) -> Path:
        """The file of a record or baseline, whether it is there or not."""
        return self._folder(type(document)) / f"{document.id}.json"

    def write(self, document: Document) -> Path:
        """Keep a document, whole or not at all; one that is there stays as it is."""
        path = self.place(document)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                write_whole(path, document_text(document))
        except OSError as error:
            reason = error.strerror or error
            raise GpurunError(
                f"{path} could not be written: {reason}",
                "make room and grant access there, or name another folder with --out",
            ) from None
        return path

    def ids(self, cls: type[Kept]) -> set[str]:
        """The ids of the records that have files."""
        stems = (path.stem for path in self._folder(cls).glob("*.json"))
        return {stem for stem in stems if ID.fullmatch(stem)}

    def read(
        self, cls: type[Kept], ids: Iterable[str], unreadable: list[str] | None = None
    ) -> Iterator[Kept]:
        """These documents, by id; what cannot be read is left out and told in `unreadable`."""
        for name in sorted(ids):
            path = self._folder(cls) / f"{name}.json"
            try:
                document = parsed(cls, read_json(path))
                if document.id != name:
                    raise RecordError(f"$.id: {document.id!r} is not the file's name")
                yield document
            except (OSError, *UNREADABLE) as error:
                if unreadable is not None:
                    unreadable.append(f"{path}: {error}")

    def _folder(self, cls: type[Kept]) -> Path:
        return self.folder if cls is BenchmarkRecord else self.folder / ACCEPTED


def document_text(document: Document) -> str:
    """The text that is kept of a document, in files and databases alike.

    It is read back first: what could not be (a step time that is no number, say) is never kept.
    """
    text = json_text(to_json(document))
    parsed(type(document), json.loads(text))
    return text


def parsed(cls: type[Kept], document: JsonValue, where: str = "$") -> Kept:
    """A record or baseline of a JSON value; `RecordError` names the place that is off."""
    found = from_json(cls, document, where)
    check_kept(found, where)
    return found
