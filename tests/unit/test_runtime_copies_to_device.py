"""The copies to a GPU, on a simulated device: what its events tell stands in the rows of steps."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forked import NURSERY

DEVICE = """
import json
from types import SimpleNamespace
import torch
from torch import Tensor
from gpurun.runtime.observe.copies_to_device import CopiesToDevice
from gpurun.runtime.observe.step_clock import CLOCK

class Device:
    '''Every event comes 1.5 ms after the one before.'''
    ms, stream, capturing, events = 0.0, "of the training", False, 0

class Event:
    def __init__(self, **options): pass
    def record(self):
        Device.ms += 1.5
        Device.events += 1
        self.at = Device.ms
    def query(self): return True
    def elapsed_time(self, other): return other.at - self.at

torch.cuda.Event = Event
torch.cuda.is_initialized = lambda: True
torch.cuda.is_current_stream_capturing = lambda: Device.capturing
torch.cuda.current_stream = lambda: Device.stream
torch.cuda.current_device = lambda: 0
CLOCK.device.attach(torch)
CLOCK.device.watching = True
rows, optimizer = [], type("Optimizer", (), {})()

def step(*copies):
    for copy in copies:
        copy()
    CLOCK.step_begins(optimizer)
    CLOCK.step_ends(optimizer)
    CLOCK.device.resolve([])
    rows.append(CLOCK._latest)

def copy():
    return torch.zeros(2).to("meta")

def on_another_stream():
    Device.stream = "aside"
    copy()
    Device.stream = "of the training"

def nothing_to_copy():
    torch.zeros(2).to(torch.float64)
    torch.zeros(2, device="meta").to("meta", torch.float64)

CopiesToDevice("meta").install()
"""


Run = Callable[[str], Any]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """What a script prints that begins with the device."""

    def told(script: str) -> Any:
        (tmp_path / "copies.py").write_text(DEVICE + script)
        done = NURSERY.run(["copies.py"], tmp_path, os.environ)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    return told


def test_copies_are_timed_in_some_early_steps_and_nothing_is_left_behind(run: Run) -> None:
    told = run("""
for _ in range(40):
    step(copy, copy, nothing_to_copy)
print(json.dumps([[row[12] for row in rows], "to" in vars(Tensor), len(CLOCK.listeners)]))
""")
    times, left, listeners = told
    assert times == [None] * 8 + [2 * 1_500_000] * 24 + [None] * 8
    assert (left, listeners) == (False, 0)


def test_copies_beside_the_training_are_no_part_of_its_steps(run: Run) -> None:
    assert (
        run("""
for _ in range(10):
    step(copy, on_another_stream)
print(json.dumps(rows[-1][12]))
""")
        == 1_500_000
    )


def test_while_a_graph_is_captured_no_event_is_recorded(run: Run) -> None:
    assert run("""
for _ in range(10):
    step()
Device.capturing, before = True, Device.events
step(copy)
print(json.dumps([Device.events - before, rows[-1][12]]))
""") == [0, None]


def test_where_somebody_stands_in_the_methods_nothing_is_measured(run: Run) -> None:
    assert run("""
own = Tensor.to
Tensor.to = lambda tensor, *args, **kwargs: own(tensor, *args, **kwargs)
his = Tensor.to
for _ in range(10):
    step(copy)
print(json.dumps([Tensor.to is his, rows[-1][12], len(CLOCK.listeners)]))
""") == [True, None, 0]


def test_a_copy_into_a_tensor_that_is_there_is_seen_too(run: Run) -> None:
    assert (
        run("""
target = torch.zeros(2, device="meta")
for _ in range(10):
    step(lambda: target.copy_(torch.zeros(2)))
print(json.dumps(rows[-1][12]))
""")
        == 1_500_000
    )


def test_a_forked_worker_destroys_no_event_of_its_parent(run: Run) -> None:
    """It would abort: CUDA cannot be called there."""
    assert (
        run("""
import os
parent = os.getpid()

def destroyed(event):
    if os.getpid() != parent:
        os._exit(3)

Event.__del__ = destroyed
for _ in range(10):
    step(copy)
copy()
worker = os.fork()
if worker == 0:
    copy()
    os._exit(0)
print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])))
""")
        == 0
    )
