"""Samples of a script's stack see Python code that is shorter than Python's switch interval."""

from __future__ import annotations

import inspect
import sys
import time

import pytest
import torch

from gpurun.records.codec import from_json, to_json
from gpurun.records.events import HostSamplesEvent
from gpurun.runtime.profile.phase_ranges import PhaseRanges
from gpurun.runtime.profile.stack_samples import StackSamples


def in_python(seconds: float) -> float:
    """Keep Python's lock for so long; the seconds that it took."""
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        pass
    return time.perf_counter() - began


def in_torch(matrix: torch.Tensor, seconds: float) -> float:
    """Compute without Python's lock for so long."""
    began = time.perf_counter()
    while time.perf_counter() < began + seconds:
        torch.mm(matrix, matrix)
    return time.perf_counter() - began


@pytest.mark.alone
def test_short_python_code_between_torch_calls_has_its_share() -> None:
    """Of a share of a third, code that Python's own interval hides gets next to nothing.

    On a busy machine the sampling thread comes late, and then mostly while torch computes.
    """
    before = sys.getswitchinterval()
    matrix = torch.randn(400, 400)
    samples = StackSamples(PhaseRanges())
    spent = {"in_python": 0.0, "in_torch": 0.0}
    samples.begin()
    for _ in range(150):
        spent["in_python"] += in_python(0.003)
        spent["in_torch"] += in_torch(matrix, 0.006)
    event = samples.finish()
    assert sys.getswitchinterval() == before
    seen = {f.function: f.total_seconds for f in event.functions}
    wanted = spent["in_python"] / sum(spent.values())
    found = seen["in_python"] / (seen["in_python"] + seen["in_torch"])
    assert 0.25 * wanted < found < 1.5 * wanted


def test_each_sample_keeps_its_moment_and_the_lines_of_its_stack() -> None:
    samples = StackSamples(PhaseRanges())
    began = time.perf_counter_ns()
    samples.begin()
    in_python(0.2)
    event = from_json(HostSamplesEvent, to_json(samples.finish()))
    times = [at for at, _ in event.moments]
    assert len(times) == event.samples > 0
    assert times == sorted(times)
    assert began < times[0] <= times[-1] < time.perf_counter_ns()
    lines, first = inspect.getsourcelines(in_python)
    seen = [
        line
        for _, stack in event.moments
        for place, line in stack
        if event.functions[place].function == "in_python"
    ]
    assert seen
    assert all(first <= line < first + len(lines) for line in seen)
