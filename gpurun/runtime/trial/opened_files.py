"""The files of a tree that a launch opens, by whichever process and in whatever language.

The kernel tells of each (inotify), from before the script's first line to the end of its process.
Of a compiled module its source counts, which python does not open then.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
from collections.abc import Iterator

from gpurun.records.events import FilesOpenedEvent
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe.exit_metrics import BEFORE_END

OPEN, OVERFLOW, OF_FOLDER = 0x20, 0x4000, 0x40000000
"""Bits of an event: a file was opened, events were lost, what was opened is a folder."""
ONLY_FOLDERS = 0x01000000
HEAD = struct.Struct("iIII")
"""Of an event: its watch, its bits, a cookie, the length of the name that follows."""
MOST_FOLDERS = 2_000
MOST_FILES = 5_000
CACHED = re.compile(r"__pycache__/([^/]+?)\.[^/.]+(?:\.opt-\d)?\.pyc$")
NOT_OF_IT = (".git", ".gpurun")


class OpenedFiles:
    """Files below `root` by their paths from there; unknown once anything was missed."""

    def __init__(self, root: str) -> None:
        self._pid = os.getpid()
        self._folders: dict[int, str] = {}
        self._files: set[str] = set()
        self._whole = sys.pycache_prefix is None
        libc = ctypes.CDLL(None, use_errno=True)
        self._told = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for folder in _folders(root):
            place = os.fsencode(folder)
            number = libc.inotify_add_watch(self._told, place, OPEN | ONLY_FOLDERS)
            if number < 0 or len(self._folders) >= MOST_FOLDERS:
                self._whole = False
                break
            self._folders[number] = os.path.relpath(folder, root)

    def write(self) -> None:
        """Write what was opened until now; a process that was forked from this one writes none."""
        if os.getpid() != self._pid:
            return
        self._read()
        known = self._whole and len(self._files) <= MOST_FILES
        RECORDER.event(FilesOpenedEvent(tuple(sorted(self._files)) if known else None))

    def _read(self) -> None:
        while self._whole:
            try:
                events = os.read(self._told, 1 << 16)
            except BlockingIOError:
                return
            except OSError:
                self._whole = False
                return
            self._take(events)

    def _take(self, events: bytes) -> None:
        at = 0
        while at < len(events):
            number, bits, _, length = HEAD.unpack_from(events, at)
            name = events[at + HEAD.size : at + HEAD.size + length].rstrip(b"\0")
            at += HEAD.size + length
            if bits & OVERFLOW:
                self._whole = False
            elif name and not bits & OF_FOLDER and number in self._folders:
                path = os.path.join(self._folders[number], os.fsdecode(name))
                self._files.add(CACHED.sub(r"\1.py", os.path.normpath(path)))


def watch(root: str) -> None:
    """Watch the tree from now on, and write at the end of this process."""

    def begin() -> None:
        BEFORE_END.append(guarded("opened files", OpenedFiles(root).write))

    guarded("opened files", begin)()


def _folders(root: str) -> Iterator[str]:
    """The folders of a tree without records, git's own, and environments of python."""
    for folder, inner, files in os.walk(root):
        if "pyvenv.cfg" in files:
            inner.clear()
            continue
        inner[:] = [name for name in inner if name not in NOT_OF_IT]
        yield folder
