"""CPU time and memory of a process tree, by psutil."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

from gpurun.measure.other_programs import busy_seconds
from gpurun.records.samples import HostSample

LIST_CHILDREN_SECONDS = 2.0
"""Listing the descendants reads all of /proc: done this seldom."""


class HostSampler:
    """Samples the tree of one process. CPU time of ended children is in their parent's figures.

    `beside`: processes of ours outside of that tree; they and what they started are none of the
    others.
    """

    def __init__(self, pid: int, beside: tuple[int, ...] = ()) -> None:
        import psutil

        self._psutil = psutil
        self._pid = pid
        self._beside = dict.fromkeys(beside, 0.0)
        """CPU seconds of each with its tree, also after its end."""
        self._tree: list[Any] = []
        self._trees_beside: dict[int, list[Any]] = {}
        self._listed = float("-inf")

    @property
    def pids(self) -> set[int]:
        """The processes of the tree as last listed."""
        return {process.pid for process in self._tree}

    @property
    def own_pids(self) -> set[int]:
        """These and all that belong to the processes beside: nobody else's."""
        return self.pids | {p.pid for tree in self._trees_beside.values() for p in tree}

    def sample(self) -> HostSample | None:
        """CPU seconds and memory now; None once the process is gone."""
        now = time.monotonic()
        listing = now - self._listed >= LIST_CHILDREN_SECONDS
        if listing:
            self._listed = now
            self._list()
        anyone = busy_seconds() if listing else None
        cpu_seconds, rss_bytes, processes = 0.0, 0, 0
        read: int | None = 0
        for process in self._tree:
            try:
                with process.oneshot():
                    seconds = _seconds_of(process)
                    rss_bytes += process.memory_info().rss
            except self._psutil.Error:
                continue  # ended since the tree was listed
            cpu_seconds += seconds
            processes += 1
            read = self._with_reads_of(process, read)
        if not processes:
            return None
        ours = cpu_seconds + self._launcher_seconds() + self._seconds_beside()
        others = None if anyone is None else anyone - ours
        return HostSample(time.time_ns(), cpu_seconds, rss_bytes, processes, others, read)

    def _with_reads_of(self, process: Any, before: int | None) -> int | None:
        """Bytes read from storage with those of one more process; None if it hides them."""
        if before is None:
            return None
        try:
            return before + int(process.io_counters().read_bytes)
        except (self._psutil.Error, OSError, AttributeError, NotImplementedError):
            return None  # another user's process, or a system without /proc/PID/io

    def _launcher_seconds(self) -> float:
        """CPU seconds of this process, unless it is in the tree itself."""
        return 0.0 if os.getpid() in self.pids else time.process_time()

    def _seconds_beside(self) -> float:
        for pid, tree in self._trees_beside.items():
            seconds = 0.0
            for process in tree:
                with suppress(self._psutil.Error):
                    seconds += _seconds_of(process)
            self._beside[pid] = max(self._beside[pid], seconds)
        return sum(self._beside.values())

    def _list(self) -> None:
        self._tree = self._tree_of(self._pid)
        self._trees_beside = {pid: self._tree_of(pid) for pid in self._beside}

    def _tree_of(self, pid: int) -> list[Any]:
        try:
            main = self._psutil.Process(pid)
            return [main, *main.children(recursive=True)]
        except self._psutil.Error:
            return []


def _seconds_of(process: Any) -> float:
    """CPU seconds of a process, and of its children that have ended."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)
