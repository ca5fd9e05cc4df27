"""Recordings of a simulated training: what a host and one stream of a device do, call by call.

Times are in microseconds. The host runs ahead of the device until it waits, as with CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from gpurun.diagnoses.diagnosis_report import diagnosis_report
from gpurun.diagnoses.evidence import Evidence
from gpurun.diagnoses.run_evidence import evidence_of_timelines
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.records.diagnosis import DiagnosisReport
from gpurun.timeline.model import CopyKind, Group, Phase, Range, Timeline
from tests.unit.made_timelines import MAIN, Made, ns

LAUNCH, DISPATCH = 4.0, 3.0
"""A call of the host, and torch's own time before it."""
LATENCY, GAP = 1.5, 1.0
"""From a launch to its kernel on an idle device, and between two kernels in the queue."""
RETURN = 3.0
"""From the end of the awaited work to the return of the call that waits for it."""


class Simulated:
    """One training. Each method is something that a script does."""

    def __init__(self) -> None:
        self.made = Made()
        self.now = 0.0
        self._free = 0.0
        """When the device has done all that was launched."""
        self._began = 0.0

    def python(self, length: float) -> None:
        """The host does something else."""
        self.now += length

    def kernels(
        self,
        count: int,
        length: float,
        group: Group = Group.OTHER,
        grid: tuple[int, int, int] | None = None,
    ) -> None:
        """Kernels that are launched one after the other."""
        for _ in range(count):
            call, run = self._launched(length)
            self.made.kernel(call, run, group=group, grid=grid)

    def synchronize(self) -> None:
        """`torch.cuda.synchronize()`."""
        self._wait("cudaDeviceSynchronize")

    def item(self) -> None:
        """`.item()`: a copy to the host that is awaited; `nonzero` does the same."""
        call, run = self._launched(1.5)
        self.made.copy(call, run, pageable=False, kind=CopyKind.D2H, size=4)
        self._wait("cudaStreamSynchronize")

    def batch(self, length: float) -> None:
        """`.to("cuda")` of memory that is not pinned: the host copies as long as the device."""
        begin, run_begin = self.now, max(self.now + LAUNCH, self._free + GAP)
        self._free = run_begin + length
        self.now = run_begin + length
        size = round(length * 10_000)
        self.made.copy((begin, self.now), (run_begin, self._free), pageable=True, size=size)
        self._wait("cudaStreamSynchronize")

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """What happens inside belongs to a part of the step."""
        begin = self.now
        yield
        self.made.ranges.append(Range(ns(begin), ns(self.now), MAIN, phase.value))

    def step(self) -> None:
        """The step is over."""
        self.made.step(self._began, self.now)
        self._began = self.now

    def timeline(self) -> Timeline:
        """The recording. Its window ends when the device has done all work, as gpurun's does."""
        self.synchronize()
        timeline = self.made.timeline()
        return replace(timeline, window_end_ns=ns(self.now))

    def _launched(self, length: float) -> tuple[tuple[float, float], tuple[float, float]]:
        begin = self.now + DISPATCH
        self.now = begin + LAUNCH
        start = max(self.now + LATENCY, self._free + GAP)
        self._free = start + length
        return (begin, self.now), (start, self._free)

    def _wait(self, name: str) -> None:
        begin = self.now + 1.0
        self.now = max(begin, self._free) + RETURN
        self.made.call(name, begin, self.now)


def report_of(timeline: Timeline, evidence: Evidence | None = None) -> DiagnosisReport:
    """The diagnosis of one recording."""
    found = evidence_of_timelines([timeline], Thresholds()) if evidence is None else evidence
    return diagnosis_report(found, "recording", timelines=[timeline])
