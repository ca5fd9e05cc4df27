"""A full run that slows down: its record shows it, and its summary says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.measure import summarise_run
from gpurun.measure.full_run import throughput_drift
from tests.conftest import Gpurun

TRAINING = """
import time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(330):
    time.sleep(0.01 if step < 165 else 0.03)
    if step % 50 == 0:
        time.sleep(0.1)  # an evaluation
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow  # quick twin: unit/test_measure_throughput_drift.py
def test_a_run_that_slows_down_is_seen_unless_it_is_short(
    tmp_path: Path, gpurun: Gpurun, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    done = gpurun("train.py")
    assert b"throughput" not in done.stderr  # a few seconds tell nothing
    (run,) = tmp_path.glob(".gpurun/runs/*")
    monkeypatch.setattr(throughput_drift, "LEAST_SECONDS", 1.0)
    result = summarise_run(run, exit_code=0, wall_seconds=1.0)
    assert result.throughput_drift is not None
    assert -0.8 < result.throughput_drift.change < -0.3
    assert any(note.startswith("throughput fell by ") for note in result.notes)
