"""Kills the processes that a trial left behind: all that are below one, as /proc shows them."""

from __future__ import annotations

import os
import signal
import time


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
