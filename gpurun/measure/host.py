"""CPU time and memory of a process tree, by psutil."""

from __future__ import annotations

import time
from typing import Any

from gpurun.records.samples import HostSample

LIST_CHILDREN_SECONDS = 2.0
"""Listing the descendants reads all of /proc: done this seldom."""


class HostSampler:
    """Samples the tree of one process. CPU time of ended children is in their parent's figures."""

    def __init__(self, pid: int) -> None:
        import psutil

        self._psutil = psutil
        self._pid = pid
        self._tree: list[Any] = []
        self._listed = float("-inf")

    @property
    def pids(self) -> set[int]:
        """The processes of the tree as last listed."""
        return {process.pid for process in self._tree}

    def sample(self) -> HostSample | None:
        """CPU seconds and memory now; None once the process is gone."""
        now = time.monotonic()
        if now - self._listed >= LIST_CHILDREN_SECONDS:
            self._listed = now
            self._list()
        cpu_seconds, rss_bytes, processes = 0.0, 0, 0
        for process in self._tree:
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    rss_bytes += process.memory_info().rss
            except self._psutil.Error:
                continue  # ended since the tree was listed
            cpu_seconds += times.user + times.system
            cpu_seconds += times.children_user + times.children_system
            processes += 1
        if not processes:
            return None
        return HostSample(time.time_ns(), cpu_seconds, rss_bytes, processes)

    def _list(self) -> None:
        try:
            main = self._psutil.Process(self._pid)
            self._tree = [main, *main.children(recursive=True)]
        except self._psutil.Error:
            self._tree = []
