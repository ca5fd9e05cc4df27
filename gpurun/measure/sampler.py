"""Samples host and devices from the launcher while the script runs, into `samples.jsonl`."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.measure.resource_use import SAMPLES_FILE
from gpurun.records.codec import to_json
from gpurun.records.samples import DeviceSample, HostSample

if TYPE_CHECKING:
    from gpurun.measure.host_sampler import HostSampler
    from gpurun.measure.nvml import DeviceSampler

SHORTEST_SECONDS = 0.2
LONGEST_SECONDS = 5.0
SHARE_OF_AGE = 0.01
"""The time between samples grows with the run: about a hundred samples an e-fold of its age."""


class Sampler:
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

    def look_around(self, earlier: Sampler | None = None) -> None:
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
            from gpurun.measure.host_sampler import HostSampler

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
