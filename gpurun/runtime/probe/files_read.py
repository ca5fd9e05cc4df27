"""Records the files that a script reads: a stored result holds only while they do not change."""

from __future__ import annotations

import os
import sys
from typing import Any

MOST_FILES = 2000
"""With more files nothing is kept: an image folder says nothing of the loss, and takes long."""
ELSEWHERE = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib")
OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The package: of it the version is known."""
INSTALLED = ("site-packages", "dist-packages")


class FilesRead:
    """Names of the files that python code of this process opens to read, from now on."""

    def __init__(self, run_dir: str) -> None:
        self._ignored = (*ELSEWHERE, sys.prefix, sys.base_prefix, run_dir, OURS)
        self._names: set[str] = set()
        self._full = False

    def begin(self) -> None:
        """Listen; python's audit hooks stay to the end of the process."""
        sys.addaudithook(self._heard)

    def names(self) -> tuple[str, ...] | None:
        """The files so far, None if there were too many."""
        return None if self._full else tuple(sorted(self._names))

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "open" or self._full:
            return
        try:
            self._take(*args[:3])
        except Exception:
            self._full = True  # a result whose files are unknown must not be kept

    def _take(self, path: Any, mode: Any, flags: Any) -> None:
        if isinstance(path, int) or (flags or 0) & (os.O_WRONLY | os.O_RDWR):
            return
        name = os.path.abspath(os.fsdecode(path))
        if name.startswith(self._ignored) or any(part in name for part in INSTALLED):
            return
        if name.endswith(".pyc"):
            from importlib.util import source_from_cache

            name = source_from_cache(name)
        self._names.add(name)
        self._full = len(self._names) > MOST_FILES
