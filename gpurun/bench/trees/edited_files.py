"""Notices that somebody edits a tree while its launches are compared."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpurun.bench.trees.git import is_in_repository, source_files
from gpurun.errors import ExitCode, GpurunError
from gpurun.records.events import OriginsEvent


class EditedFiles:
    """The files of some trees as they are now: sources that git knows, and modules once loaded. In
    a folder that is in no repository, as two settings of a script may be, these alone.

    `scripts_write`: launches work on the real files, so only python files that were there are
    looked at.
    """

    def __init__(self, roots: Iterable[Path], scripts_write: bool) -> None:
        self._roots = tuple(dict.fromkeys(roots))
        self._scripts_write = scripts_write
        self._versions: dict[str, object] = {}
        self._add(self._sources())

    def loaded(self, events: Iterable[OriginsEvent]) -> None:
        """Look at these modules of a tree too, compiled ones that git ignores among them."""
        self._add(file for event in events for _, file in event.own)

    def refuse(self) -> None:
        """`GpurunError` (exit code 5) if a file is not as it was when it was first looked at, or if
        there is a new module."""
        for file, version in self._versions.items():
            if _version(file) != version:
                raise _edited(file, "changed")
        for file in () if self._scripts_write else self._sources():
            if file not in self._versions and file.endswith(".py"):
                raise _edited(file, "added")

    def _sources(self) -> Iterator[str]:
        for root in filter(is_in_repository, self._roots):
            yield from (str(root / name) for name in source_files(root))

    def _add(self, files: Iterable[str]) -> None:
        for file in files:
            if file not in self._versions and (file.endswith(".py") or not self._scripts_write):
                self._versions[file] = _version(file)


def _version(file: str) -> object:
    """The content of a python file; of any other, what changes whenever it is written."""
    try:
        if file.endswith(".py"):
            return hashlib.blake2b(Path(file).read_bytes()).digest()
        status = os.lstat(file)
        return status.st_mtime_ns, status.st_size, status.st_ino
    except OSError:
        return None


def _edited(file: str, how: str) -> GpurunError:
    return GpurunError(
        f"{file} was {how} while it was compared: its launches ran different code",
        "compare again, and leave both trees as they are until it is over",
        ExitCode.BENCHMARK_FAILED,
    )
