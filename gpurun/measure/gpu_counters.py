"""How busy the units of a GPU are: NVML's GPM counters (Hopper and later), else DCGM (Volta on).

`dcgmi dmon` prints DCGM's fields 1001 to 1005 once a second; it needs DCGM's host engine.
Formats: DCGM's user guide, "Feature Overview".
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable
from typing import Any

from gpurun.measure.visible_gpus import ask, error_text

DCGM_FIELDS = {"GRACT": "graphics", "SMACT": "sm", "TENSO": "tensor", "DRAMA": "dram"}
"""The names of the columns, and what they are here: parts of the time, from 0 to 1."""
IDS = "1001,1002,1004,1005"
INTERVAL_MS = 1000
OLD_SECONDS = 3.0
"""A figure of this age says nothing of now: the program has ended, or hangs."""
PATIENCE_SECONDS = 10.0
_NUMBER = re.compile(r"^\|\s*(\d+)\s*\|")
_UUID = re.compile(r"UUID:\s*(\S+)")


GPM_METRICS = {"graphics": 1, "sm": 2, "tensor": 5, "dram": 10}
"""NVML_GPM_METRIC_GRAPHICS_UTIL, _SM_UTIL, _ANY_TENSOR_UTIL and _DRAM_BW_UTIL, in percent."""


XID_EVENT = 8
"""nvmlEventTypeXidCriticalError."""
MOST_XIDS = 16
"""In one sample."""


class GpmActivity:
    """Activities of one GPU: means between two samples of its counters.

    `refused`: why a GPU that has these counters does not tell them; None if it does, and for GPUs
    without.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.refused: str | None = None
        self._nvml = nvml
        self._handle = handle
        support = ask(getattr(nvml, "nvmlGpmQueryDeviceSupport", None), handle)
        self._supported = support is not None and bool(support.isSupportedDevice)
        self._before: Any = None
        self._spare: Any = None

    @property
    def supported(self) -> bool:
        """True if this GPU has the counters and tells them."""
        return self._supported

    def since_last(self) -> dict[str, float]:
        """Percent by name of `GPM_METRICS`, without those that the device does not tell."""
        if not self._supported:
            return {}
        try:
            sample = self._spare or self._nvml.nvmlGpmSampleAlloc()
            self._spare = sample
            self._nvml.nvmlGpmSampleGet(self._handle, sample)
        except Exception as error:
            self._supported = False
            self.refused = error_text(error)
            return {}
        before, self._before, self._spare = self._before, sample, self._before
        return {} if before is None else self._metrics(before, sample)

    def close(self) -> None:
        """Give the samples back."""
        for sample in (self._before, self._spare):
            if sample is not None:
                ask(self._nvml.nvmlGpmSampleFree, sample)

    def _metrics(self, before: Any, after: Any) -> dict[str, float]:
        nvml = self._nvml
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(GPM_METRICS)
        request.sample1, request.sample2 = before, after
        for index, metric in enumerate(GPM_METRICS.values()):
            request.metrics[index].metricId = metric
        try:
            nvml.nvmlGpmMetricsGet(request)
        except Exception as error:
            self.refused = error_text(error)
            return {}
        told = zip(GPM_METRICS, request.metrics, strict=False)
        return {name: float(metric.value) for name, metric in told if metric.nvmlReturn == 0}


class XidErrors:
    """Errors of one GPU that the driver reports while it is watched, by their numbers (XIDs)."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._events = ask(getattr(nvml, "nvmlEventSetCreate", None))
        try:
            nvml.nvmlDeviceRegisterEvents(handle, XID_EVENT, self._events)
        except Exception:
            self.close()  # the device or its driver has no such events

    def since_last(self) -> tuple[int, ...] | None:
        """Those since the last call; None where the driver reports none."""
        if self._events is None:
            return None
        found: list[int] = []
        while len(found) < MOST_XIDS:
            event = ask(self._nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:  # NVML's error for a time that is over
                break
            found.append(int(event.eventData))
        return tuple(found)

    def close(self) -> None:
        """Give the events back."""
        if self._events is not None:
            ask(self._nvml.nvmlEventSetFree, self._events)
        self._events = None


class DcgmCounters:
    """The latest activities of all GPUs, read by a thread; none where DCGM does not answer."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[float, dict[str, float]]] = {}
        self._program: subprocess.Popen[str] | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        path = shutil.which("dcgmi")
        if path is not None:
            self._thread = threading.Thread(target=self._read, args=(path,), daemon=True)
            self._thread.start()

    def since_last(self, uuid: str) -> dict[str, float]:
        """Percent of the last second by name, as of the GPM counters; empty where not known."""
        at, activity = self._latest.get(uuid, (0.0, {}))
        return activity if time.monotonic() - at < OLD_SECONDS else {}

    def close(self) -> None:
        """End the program."""
        self._closed.set()
        if self._program is not None:
            self._program.kill()
        if self._thread is not None:
            self._thread.join(PATIENCE_SECONDS)

    def _read(self, path: str) -> None:
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            listed = subprocess.run(
                [path, "discovery", "-l"], capture_output=True, text=True,
                stdin=subprocess.DEVNULL, timeout=PATIENCE_SECONDS, check=True,
            )  # fmt: skip
            uuids = uuids_by_number(listed.stdout.splitlines())
            if not uuids or self._closed.is_set():
                return
            self._program = subprocess.Popen(
                [path, "dmon", "-e", IDS, "-d", str(INTERVAL_MS)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, start_new_session=True,
            )  # fmt: skip
            with self._program as program:
                if self._closed.is_set():
                    program.kill()
                assert program.stdout is not None
                self._take(uuids, program.stdout)

    def _take(self, uuids: dict[int, str], lines: Iterable[str]) -> None:
        columns: list[str] = []
        for line in lines:
            words = line.replace("#", " ").split()
            if words[:1] == ["Entity"]:
                columns = words[1:]
            elif words[:1] == ["GPU"] and len(words) > 2 and words[1].isdigit():
                uuid = uuids.get(int(words[1]))
                if uuid is not None:
                    self._latest[uuid] = time.monotonic(), activities(columns, words[2:])


def uuids_by_number(lines: Iterable[str]) -> dict[int, str]:
    """The UUID of each GPU by DCGM's number, from `dcgmi discovery -l`."""
    found: dict[int, str] = {}
    number: int | None = None
    for line in lines:
        if match := _NUMBER.match(line):
            number = int(match[1])
        if number is not None and (told := _UUID.search(line)):
            found[number] = told[1]
            number = None
    return found


def activities(columns: Iterable[str], values: Iterable[str]) -> dict[str, float]:
    """Percent by name, without columns that have no figure ("N/A")."""
    found: dict[str, float] = {}
    for column, value in zip(columns, values, strict=False):
        name = DCGM_FIELDS.get(column)
        with contextlib.suppress(ValueError):
            if name is not None and 0.0 <= float(value) <= 1.0:
                found[name] = 100 * float(value)
    return found
