"""Figures of a plain run that only a GPU has: copies to it, MFU, its memory's share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.run_events import events, rows_by, run_in

pytestmark = pytest.mark.gpu

MEGABYTE = 1 << 20
SCRIPT = f"""
import torch
from torch import nn
model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = [torch.randn(4096, 1024).pin_memory() for _ in range(4)]  # {16 * MEGABYTE} bytes each
for step in range(60):
    x = batches[step % 4].to("cuda", non_blocking=True)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


def test_copies_arithmetic_and_memory_are_measured(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = gpurun("--json", "out.json", "script.py")
    assert done.returncode == 0, done.stderr.decode()
    result: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    assert result["hook_errors"] == []
    copy_ms = result["split"]["host_to_device_copy_ms"]
    # no bus moves more than 200 GB/s
    assert 16 * MEGABYTE / 200e9 * 1000 < copy_ms < result["step_time_ms"]["mean"]
    looked = [row[12] for row in rows_by("optimizer", events(run_in(tmp_path)))]
    assert 16 <= sum(x is not None for x in looked) <= 24
    # forward and weights' gradients of both layers, inputs' gradient of the second
    layers = 2 * 4096 * 1024 * (1024 + 8)
    assert result["flops_per_step"] == 2 * layers + 2 * 4096 * 1024 * 8
    assert result["flops_per_second"] > 0
    assert result["mfu"] is None or 0 < result["mfu"] < 1
    assert 0 < result["memory_share"] < 1
