"""Steps behind the window on a GPU: what starts and stops, and what is written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpurun.records.messages.profile_events import MemoryTraceEvent
from gpurun.runtime.profile import detailed_steps
from gpurun.runtime.profile.detailed_steps import DetailedSteps

ENTRY = {"action": "alloc", "size": 64, "time_us": 0, "frames": [], "addr": 0, "stream": 0}


class Device:
    """Stands for torch on a machine with a GPU."""

    def __init__(self, used: bool = True, history: bool = False) -> None:
        self.told: list[dict[str, Any]] = []
        memory = SimpleNamespace(
            _record_memory_history=lambda **how: self.told.append(how),
            _snapshot=lambda: {"device_traces": [[ENTRY, ENTRY]]},
        )
        self.cuda = SimpleNamespace(
            is_initialized=lambda: used,
            current_device=lambda: 0,
            memory_allocated=lambda: 1000,
            memory=memory,
        )
        self._C = SimpleNamespace(_cuda_isHistoryEnabled=lambda: history)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(detailed_steps.RECORDER, "event", found.append)
    return found


def steps_of(torch: Device, folder: Path) -> tuple[DetailedSteps, list[str]]:
    said: list[str] = []
    steps = DetailedSteps(torch, folder)
    steps._kineto = SimpleNamespace(  # type: ignore[assignment]
        begin=lambda: said.append("begin"), finish=lambda: said.append("finish")
    )
    return steps, said


def test_two_steps_are_recorded_and_then_nothing(tmp_path: Path, events: list[Any]) -> None:
    torch = Device()
    steps, said = steps_of(torch, tmp_path)
    steps.begin()
    assert steps.recording
    assert [steps.after_step(), steps.after_step()] == [False, True]
    assert not steps.recording
    assert said == ["begin", "finish"]
    (trace,) = events
    assert isinstance(trace, MemoryTraceEvent)
    assert list(trace.peak_bytes.values()) == [1128]
    assert torch.told[-1] == {"enabled": None}


def test_without_a_device_in_use_operators_are_in_the_window(
    tmp_path: Path, events: list[Any]
) -> None:
    steps, said = steps_of(Device(used=False), tmp_path)
    steps.begin()
    assert (steps.recording, said) == (False, [])


def test_a_history_that_the_script_records_is_left_alone(tmp_path: Path, events: list[Any]) -> None:
    torch = Device(history=True)
    steps, _ = steps_of(torch, tmp_path)
    steps.begin()
    steps.after_step()
    assert steps.after_step()
    assert (torch.told, events) == ([], [])


def test_a_script_that_ends_inside_leaves_nothing_behind(tmp_path: Path, events: list[Any]) -> None:
    torch = Device()
    steps, said = steps_of(torch, tmp_path)
    steps.begin()
    steps._trace.write_text("half of it")
    steps.abandon()
    assert (steps.recording, said) == (False, ["begin", "finish"])
    assert not steps._trace.exists()
    assert events == []
    assert torch.told[-1] == {"enabled": None}
