"""A full run says once, at its end, that its throughput drifted."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Gpurun

TRAINING = """
import sys, time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(330):
    time.sleep(0.03 if step < 165 else float(sys.argv[1]))
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""


def test_a_run_that_slows_down_says_so_at_its_end(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    done = gpurun("--json", "r.json", "train.py", "0.06")
    result = json.loads((tmp_path / "r.json").read_text())
    assert -0.6 < result["throughput_drift"]["change"] < -0.3
    (line,) = [x for x in done.stderr.decode().splitlines() if "throughput" in x]
    assert line.startswith("gpurun: note: throughput fell by ")
