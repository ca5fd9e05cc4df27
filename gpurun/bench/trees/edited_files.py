"""Notices that somebody edits a tree while its launches are compared."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from gpurun.bench.trees.git import source_files
from gpurun.errors import ExitCode, GpurunError
from gpurun.records.events import OriginsEvent

Stamp = tuple[int, int, int]


class EditedFiles:
    """The files of some trees as they are now: sources that git knows, and modules once loaded.

    `scripts_write`: launches work on the real files, so only python files are looked at.
    """

    def __init__(self, roots: Iterable[Path], scripts_write: bool) -> None:
        self._scripts_write = scripts_write
        self._stamps: dict[str, Stamp | None] = {}
        for root in dict.fromkeys(roots):
            self._add(str(root / name) for name in source_files(root))

    def loaded(self, events: Iterable[OriginsEvent]) -> None:
        """Look at these modules of a tree too, compiled ones that git ignores among them."""
        self._add(file for event in events for _, file in event.own)

    def refuse(self) -> None:
        """`GpurunError` (exit code 5) if a file is not as it was when it was first looked at."""
        for file, stamp in self._stamps.items():
            if _stamp(file) != stamp:
                raise GpurunError(
                    f"{file} was changed while it was compared: its launches ran different code",
                    "compare again, and leave both trees as they are until it is over",
                    ExitCode.BENCHMARK_FAILED,
                )

    def _add(self, files: Iterable[str]) -> None:
        for file in files:
            if file not in self._stamps and (file.endswith(".py") or not self._scripts_write):
                self._stamps[file] = _stamp(file)


def _stamp(file: str) -> Stamp | None:
    try:
        status = os.lstat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
