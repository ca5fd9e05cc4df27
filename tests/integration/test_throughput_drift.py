"""A full run that slows down: a line on the terminal says so, and so does its record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Gpurun

TRAINING = """
import time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(330):
    time.sleep(0.15 if step < 165 else 0.3)
    if step % 50 == 0:
        time.sleep(1)  # an evaluation
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow  # quick twin: unit/test_measure_throughput_drift.py
def test_a_run_of_more_than_a_minute_says_that_it_slows_down(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    done = gpurun("--json", "r.json", "train.py")
    (line,) = (x for x in done.stderr.decode().splitlines() if "throughput" in x)
    assert line.startswith("gpurun: note: throughput fell by ")
    result = json.loads((tmp_path / "r.json").read_text())
    assert -0.7 < result["throughput_drift"]["change"] < -0.2
    assert any(note.startswith("throughput fell by ") for note in result["notes"])
