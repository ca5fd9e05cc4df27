"""Kills the processes that a trial or a rank left behind.

Those of a trial are below one process. Those of a rank see its layer. /proc shows both.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path


def descendants(ancestor: int) -> list[int]:
    """All processes below `ancestor`, by parent links at this moment."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = parent_of(int(name))
            if parent is not None:
                children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    queue = [ancestor]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def kill_descendants(ancestor: int) -> None:
    """Kill and reap all that is below us (`ancestor` is our own pid, and we are a subreaper).

    Repeats until no child is left: a process may fork while we look.
    """
    while True:
        for pid in descendants(ancestor):
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def parent_of(pid: int) -> int | None:
    """The parent of a process at this moment; None once it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name in parentheses may hold anything; the fields after its last ")" do not.
    return int(text[text.rindex(b")") + 2 :].split()[1])


def end_all_that_see(folder: Path) -> None:
    """Kill every process that has an overlay mounted which writes below `folder`, until none is
    left (one may fork meanwhile).

    The number of a mount namespace would not do: once it ends, the kernel gives it to the next one.
    """
    left = not _sees("self", folder)
    while left:
        left = False
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), _process(int(name)) as process:
                ours = os.stat(f"/proc/{name}").st_uid == os.geteuid()
                if ours and _sees(name, folder):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    left = True
        if left:
            time.sleep(0.002)


def _sees(process: str, folder: Path) -> bool:
    """True if an overlay that writes to this layer is mounted for a process.

    Other mounts do not count: any user may choose the source and the place of a FUSE mount.
    """
    part = f"/{folder.name}/".encode()
    lines = Path(f"/proc/{process}/mountinfo").read_bytes().splitlines()
    return any(part in line.partition(b" - overlay ")[2] for line in lines)


@contextlib.contextmanager
def _process(pid: int) -> Iterator[int]:
    """A handle of a process, which stays its own when another one gets its number."""
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)
