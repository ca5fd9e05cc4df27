"""A slow-down on purpose (`TrialSpec.planted_seconds`), by which a selftest sees its gate fail.

Every step of the clock takes so much longer. The host is kept busy for that long, and so is the
device where CUDA is in use: whichever of them the training waits for is then late by just that, and
neither delay is hidden behind the other side's work. The time that was really added is measured and
written down.
"""

from __future__ import annotations

import os
import sys
import time
from types import ModuleType

from gpurun.records.events import PlantedEvent
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe import exit_metrics
from gpurun.runtime.observe.step_clock import CLOCK

SPUN_NS = 500_000
"""The end of each delay is spun through: a sleep wakes up tens of microseconds late."""
CALIBRATION_CYCLES = 10_000_000
"""Long enough that launching the kernel does not count, short enough for one step (5 ms)."""

now = time.perf_counter_ns


def plant(seconds: float) -> None:
    """Make each further step of this process take `seconds` longer."""
    planted = _Planted(seconds)
    exit_metrics.BEFORE_END.append(planted.write)
    CLOCK.listeners.append(guarded("planted delay", planted.delay))


class _Planted:
    """The slow-down of this process."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._process = os.getpid()
        self._cycles: int | None = None
        self._delays = 0
        self._spent_ns = 0

    def delay(self, count: int) -> None:
        """After each step of the clock: its time counts as the next one's."""
        began = now()
        self._delay_device()
        end = began + int(self.seconds * 1e9)
        asleep = end - SPUN_NS - now()
        if asleep > 0:
            time.sleep(asleep / 1e9)
        while now() < end:
            pass
        self._spent_ns += now() - began
        self._delays += 1

    def write(self) -> None:
        """Write the time that was added; a forked child has added none."""
        if os.getpid() == self._process:
            RECORDER.event(PlantedEvent(self.seconds, self._delays, self._spent_ns / 1e9))

    def _delay_device(self) -> None:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        if torch.cuda.is_current_stream_capturing():
            return
        if self._cycles is None:
            self._cycles = int(self.seconds * _cycles_per_second(torch))
        torch.cuda._sleep(self._cycles)


def _cycles_per_second(torch: ModuleType) -> float:
    """The pace at which the device counts for its sleeping kernel. Waits for the device, once."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(CALIBRATION_CYCLES)  # loads the kernel, and wakes up the clocks
    begin.record()
    torch.cuda._sleep(CALIBRATION_CYCLES)
    end.record()
    end.synchronize()
    return CALIBRATION_CYCLES / (float(begin.elapsed_time(end)) / 1000)
