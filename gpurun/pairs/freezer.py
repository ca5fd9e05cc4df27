"""Freezes a process with all that it started, so that the other side of a pair has the machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path


class Freezer:
    """Stops and continues the process tree below `pid`, `pid` included.

    SIGSTOP reaches every process whatever it ignores. The main process is stopped first, and the
    tree is read again until nothing new appears: a worker may fork while it is being stopped.
    `adopter`: the process that gets the tree's orphans as children, and never stops.
    """

    def __init__(self, pid: int, adopter: int | None = None) -> None:
        self._pid = pid
        self._root = pid if adopter is None else adopter
        self._frozen: list[int] = []

    @property
    def frozen(self) -> bool:
        """True if the tree is stopped at present."""
        return bool(self._frozen)

    def freeze(self) -> None:
        """Stop the whole tree, unless it is stopped."""
        ahead = [] if self._frozen else [self._pid]
        while ahead:
            for pid in ahead:
                _send(pid, signal.SIGSTOP)
            self._frozen += ahead
            ahead = [pid for pid in tree_below(self._root) if pid not in self._frozen]

    def thaw(self) -> None:
        """Let it go on, those that were stopped last first."""
        for pid in reversed(self._frozen):
            _send(pid, signal.SIGCONT)
        self._frozen.clear()

    def cpu_seconds(self) -> float:
        """What the processes of the tree have computed so far; those that ended are left out."""
        ticks = sum(map(_ticks, {self._pid, *tree_below(self._root)}))
        return ticks / os.sysconf("SC_CLK_TCK")


def tree_below(pid: int) -> list[int]:
    """All processes below one by parent links; sessions and process groups do not matter."""
    found: list[int] = []
    ahead = [pid]
    while ahead:
        parent = ahead.pop()
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                children = [int(word) for word in path.read_text().split()]
            except OSError:  # the thread or the process has ended
                continue
            found += children
            ahead += children
    return found


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])  # utime and stime


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has ended by itself
