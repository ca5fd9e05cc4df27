"""Rank 0 makes, renames and removes files after the other ranks have.

All ranks run one script, and those above 0 see the files of rank 0 below their own. If rank 0 made
a folder first, `os.makedirs("out")` would fail in the others. So each rank counts its meetings: the
places in the script at which ranks exchange something. Rank 0 changes a name once the others have
come to the meeting after its own last one, or to their end. By then they have changed it, too.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from gpurun.knobs.callers import caller_past, is_ours, is_standard, is_users
from gpurun.runtime.core.patching import guarded

MADE = "os.mkdir"
CHANGES = frozenset(
    {MADE, "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "shutil.rmtree"}
)
"""Audit events of changes of a name."""
PATIENCE_SECONDS = 30.0
"""Rank 0 waits no longer, and then no more in this run: a rank may wait for it in turn."""
POLL_SECONDS = 0.002
ENDED = 2**63 - 1
_COUNT = struct.Struct("q")


class Meetings:
    """The number of meetings of this rank, which it shows to rank 0 of its host in a file."""

    def __init__(self) -> None:
        self.count = 0
        self._shown: mmap.mmap | None = None
        self._pid = os.getpid()

    def show(self, path: Path) -> None:
        """Show the number in a file from now on."""
        self._shown = opened(path)
        self._write(0)

    def next(self) -> None:
        """This rank has come to a place at which ranks exchange something."""
        self.count += 1
        self._write(self.count)

    def end(self) -> None:
        """The script of this rank is over."""
        self._write(ENDED)

    def _write(self, count: int) -> None:
        if self._shown is not None and os.getpid() == self._pid:
            _COUNT.pack_into(self._shown, 0, count)


MEETINGS = Meetings()


class RankZeroLast:
    """Holds rank 0 before it changes a name. `others`: the files in which the others count."""

    def __init__(self, others: Sequence[Path], meetings: Meetings) -> None:
        self._others = [opened(path) for path in others]
        self._meetings = meetings
        self._pid = os.getpid()

    def install(self) -> None:
        """Listen; python's audit hooks stay to the end of the process."""
        sys.addaudithook(guarded("order of ranks", self._heard))

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in CHANGES or not self._others or os.getpid() != self._pid:
            return
        if event == MADE and os.path.lexists(args[0]):
            return  # it is there already, and stays as it is
        if asked_by_script(sys._getframe(1)):
            self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while any(_COUNT.unpack_from(x)[0] <= self._meetings.count for x in self._others):
            if time.monotonic() > end:
                self._others = []
                return
            time.sleep(POLL_SECONDS)


def install(rank: int, run_dir: str) -> None:
    """Before torch is imported, in the process that the agent has started. Ranks on other hosts
    have files of their own."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    control = Path(run_dir) / "control"
    control.mkdir(parents=True, exist_ok=True)

    def file_of(number: int) -> Path:
        return control / f"meetings-{attempt}-{number}"

    if rank:
        MEETINGS.show(file_of(rank))
    else:
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        RankZeroLast([file_of(n) for n in range(1, here)], MEETINGS).install()


def opened(path: Path) -> mmap.mmap:
    """The file of a number, for all that have it open; a new one holds 0."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(handle, _COUNT.size)
        return mmap.mmap(handle, _COUNT.size)
    finally:
        os.close(handle)


def asked_by_script(frame: FrameType | None) -> bool:
    """True if the user's own code calls the standard library, or what stands in for it (renames of
    a trial); a library takes care of itself."""
    caller = caller_past(frame, lambda one: is_ours(one) or is_standard(one))
    return caller is not None and is_users(caller)
