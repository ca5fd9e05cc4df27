"""Samples of the host and of its GPUs while a script runs, taken by a thread of the launcher."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpurun.measure.machine import busy_seconds
from gpurun.measure.resource_use import SAMPLES_FILE
from gpurun.records.codec import to_json
from gpurun.records.samples import DeviceSample, HostSample

if TYPE_CHECKING:
    from gpurun.measure.nvml import DeviceSampler


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


SHORTEST_SECONDS = 0.2
LONGEST_SECONDS = 5.0
SHARE_OF_AGE = 0.01
"""The time between samples grows with the run: about a hundred samples an e-fold of its age."""


class RunSampler:
    """Called often by the launcher's loop; decides by itself when to look.

    The heavy imports wait for the first look, so that a script that ends at once pays nothing.
    """

    def __init__(self, run_dir: Path, beside: tuple[int, ...] = ()) -> None:
        self.beside = beside
        """Processes of ours outside of the tree that is sampled; to be known by the first look."""
        self._path = run_dir / SAMPLES_FILE
        self._file: int | None = None
        self._started = time.monotonic()
        self._due = self._started
        self._unix_ahead_ns = time.time_ns() - time.monotonic_ns()
        self._pid: int | None = None
        self._host: HostSampler | None = None
        self._devices: DeviceSampler | None = None

    def look_around(self, earlier: RunSampler | None = None) -> None:
        """Note who is on the GPUs now, before the script can be: see `DeviceSampler`.

        `earlier`: it looked before other processes of ours came, and its look counts.
        """
        if earlier is None:
            self._device_sampler().look_around()
        else:
            self._device_sampler().strangers = earlier._device_sampler().strangers

    @property
    def sees_gpus(self) -> bool:
        """True if there is a GPU that the script may use."""
        return self._device_sampler().sees_gpus

    def tick(self, pid: int) -> None:
        """Sample the tree of process `pid` and the visible devices if it is time."""
        now = time.monotonic()
        if now < self._due:
            return
        wait = (now - self._started) * SHARE_OF_AGE
        self._due = now + min(max(wait, SHORTEST_SECONDS), LONGEST_SECONDS)
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            flags |= os.O_NONBLOCK  # a pipe that nobody reads is an error
            self._file = os.open(self._path, flags, 0o644)
        lines = [*self._host_lines(pid), *self._device_lines()]
        if lines:
            os.write(self._file, b"".join(lines))

    def close(self) -> None:
        """Let go of the devices and the file."""
        if self._devices is not None:
            self._devices.close()
            self._devices = None
        file, self._file = self._file, None  # a signal's exception may come in between
        if file is not None:
            os.close(file)

    def _host_lines(self, pid: int) -> list[bytes]:
        if self._host is None or self._pid != pid:
            self._host, self._pid = HostSampler(pid, self.beside), pid
        sample = self._host.sample()
        return [] if sample is None else [self._line(sample)]

    def _device_lines(self) -> list[bytes]:
        pids = self._host.own_pids if self._host is not None else set()
        return [self._line(sample) for sample in self._device_sampler().sample(pids)]

    def _device_sampler(self) -> DeviceSampler:
        if self._devices is None:
            from gpurun.measure.nvml import DeviceSampler

            self._devices = DeviceSampler()
        return self._devices

    def _line(self, sample: HostSample | DeviceSample) -> bytes:
        """The sample's line; its time passes over jumps of the clock, as those of steps do."""
        jumped_ns = time.time_ns() - time.monotonic_ns() - self._unix_ahead_ns
        steady = replace(sample, unix_time_ns=sample.unix_time_ns - jumped_ns)
        return json.dumps({"event": sample.kind, **to_json(steady)}).encode() + b"\n"
