"""The step clock on a CUDA device: device times, losses, graph capture and two devices' streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.run_events import events, rows_by, run_in

pytestmark = pytest.mark.gpu

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 2)).cuda()
optimizer = torch.optim.Adam(model.parameters(), capturable=True)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
data = TensorDataset(torch.randn(64 * 100, 64), torch.randint(0, 2, (64 * 100,)))
for x, y in DataLoader(data, batch_size=64, pin_memory=True):
    x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
del loss  # its graph would tie the capture to the default stream

graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
still_x, still_y = x.clone(), y.clone()
def whole():
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(still_x), still_y)
    loss.backward()
    optimizer.step()
    return loss
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3):
        whole()
torch.cuda.current_stream().wait_stream(stream)
with torch.cuda.graph(graph):
    captured = whole()
graph.replay()  # a capture computes nothing
before = captured.item()
for _ in range(200):
    graph.replay()
print("replayed", captured.item() < before)
"""


def test_steps_are_timed_on_the_device_and_a_capture_is_left_alone(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = gpurun("script.py")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"replayed True\n"
    run = run_in(tmp_path)
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    assert result["hook_errors"] == []
    rows = rows_by("optimizer", events(run))
    assert len(rows) == 104
    assert sum(row[11] is not None for row in rows) >= 95  # the first and the captured have none
    losses = [row[10] for row in rows if row[10] is not None]
    assert losses
    assert all(isinstance(loss, float) and loss < 10 for loss in losses)
    assert result["peak_memory_bytes"] > 0


EPOCHS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(640, 8), torch.randint(0, 2, (640,)))
loader = DataLoader(data, batch_size=32, num_workers=2)
for epoch in range(4):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_workers_forked_while_steps_are_timed_live(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "script.py").write_text(EPOCHS)
    done = gpurun("script.py")
    assert done.returncode == 0, done.stderr.decode()
    assert len(rows_by("optimizer", events(run_in(tmp_path)))) == 80
