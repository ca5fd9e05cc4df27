"""Notices that somebody edits a tree while its launches are compared."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpurun.bench.trees.git import is_in_repository, source_files
from gpurun.errors import ExitCode, GpurunError
from gpurun.records.events import OriginsEvent

LARGEST_READ = 1 << 20
"""Bytes of a file. Larger ones hold data: they count as changed when they are touched."""

Stamp = tuple[int, int, int] | None
"""What changes whenever a file is written; None without a file."""


class EditedFiles:
    """The files of some trees as they are now: sources that git knows, and modules once loaded. In
    a folder that is in no repository, as two settings of a script may be, these alone.

    `scripts_write`: launches work on the real files, so only python files that were there are
    looked at.
    """

    def __init__(self, roots: Iterable[Path], scripts_write: bool) -> None:
        self._roots = tuple(dict.fromkeys(roots))
        self._scripts_write = scripts_write
        self._versions: dict[str, tuple[Stamp, bytes]] = {}
        self._add(self._sources())

    def loaded(self, events: Iterable[OriginsEvent]) -> None:
        """Look at these modules of a tree too, compiled ones that git ignores among them."""
        self._add(file for event in events for _, file in event.own)

    def refuse(self) -> None:
        """`GpurunError` (exit code 5) if a file's content is not as it was when it was first looked
        at, or if there is a new module."""
        for file, (stamp, content) in self._versions.items():
            if _stamp(file) != stamp and (not content or _content(file) != content):
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
                self._versions[file] = _stamp(file), _content(file)


def _stamp(file: str) -> Stamp:
    try:
        status = os.lstat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _content(file: str) -> bytes:
    """A hash; nothing of a file that is missing, large, or none of bytes."""
    if not os.path.isfile(file) or os.path.getsize(file) > LARGEST_READ:
        return b""
    try:
        return hashlib.blake2b(Path(file).read_bytes()).digest()
    except OSError:
        return b""


def _edited(file: str, how: str) -> GpurunError:
    return GpurunError(
        f"{file} was {how} while it was compared: its launches ran different code",
        "compare again, and leave both trees as they are until it is over",
        ExitCode.BENCHMARK_FAILED,
    )
