"""A slow-down planted in the step hook: there on the host and on the device, and written down."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gpurun.records.events import PlantedEvent
from gpurun.runtime.observe import exit_metrics
from gpurun.runtime.observe.step_clock import CLOCK
from gpurun.runtime.trial import planted_delay


@pytest.fixture(autouse=True)
def nothing_planted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The clock and the recorder of this process as if nothing had ever been planted."""
    written: list[Any] = []
    monkeypatch.setattr(exit_metrics, "BEFORE_END", [])
    monkeypatch.setattr(CLOCK, "listeners", [])
    monkeypatch.setattr(planted_delay, "RECORDER", SimpleNamespace(event=written.append))
    monkeypatch.setitem(sys.modules, "torch", None)
    return written


def test_every_step_takes_as_much_longer_as_is_written_down(nothing_planted: list[Any]) -> None:
    planted_delay.plant(0.002)
    began = time.perf_counter()
    for step in (1, 2, 3):
        for listener in CLOCK.listeners:
            listener(step)
    took = time.perf_counter() - began
    (write,) = exit_metrics.BEFORE_END
    write()
    (event,) = nothing_planted
    assert isinstance(event, PlantedEvent)
    assert (event.step_seconds, event.delays) == (0.002, 3)
    assert 3 * 0.002 <= event.seconds <= took


class Cuda:
    """What is asked of a GPU that counts 2e9 cycles a second."""

    def __init__(self) -> None:
        self.slept: list[int] = []
        self.capturing = False

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def _sleep(self, cycles: int) -> None:
        self.slept.append(cycles)

    def Event(self, enable_timing: bool) -> Any:
        return SimpleNamespace(
            record=lambda: None, synchronize=lambda: None, elapsed_time=lambda end: 5.0
        )


def test_a_gpu_in_use_is_delayed_too_but_never_while_a_graph_is_captured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    planted_delay.plant(0.001)
    cuda.capturing = True
    CLOCK.listeners[0](1)
    assert cuda.slept == []
    cuda.capturing = False
    CLOCK.listeners[0](2)
    CLOCK.listeners[0](3)
    calibration, delays = cuda.slept[:2], cuda.slept[2:]
    assert calibration == [planted_delay.CALIBRATION_CYCLES] * 2
    assert delays == [2_000_000, 2_000_000]
