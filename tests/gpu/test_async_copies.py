"""Batches that the script moves itself: staged, the GPU computes with what was moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Gpurun
from tests.integration.knob_runs import run_under

pytestmark = pytest.mark.gpu

TRAIN = """
import json
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64 * 64, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
ahead, wrong = torch.randn(2048, 2048, device="cuda"), []
buffer, labels = torch.empty(32, 64, 64), np.empty(32, np.int64)
turned = buffer.permute(0, 2, 1)
for step in range(200):
    for _ in range(4):
        ahead = (ahead @ ahead).clamp(-1, 1)  # the GPU lags behind
    buffer.fill_(step)
    labels.fill(step)
    x, y = buffer.to("cuda"), torch.from_numpy(labels).cuda()
    z = turned.to("cuda", torch.float64)
    buffer.fill_(-1)
    labels.fill(-1)
    wrong.append((x != step).sum() + (y != step).sum() + (z != step).sum())
    assert (x.dtype, y.dtype, z.dtype) == (torch.float32, torch.int64, torch.float64)
    assert z.stride() == turned.stride()
    loss = nn.functional.mse_loss(model(x.flatten(1))[:, 0], y.float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(json.dumps({"wrong": int(sum(wrong))}))
"""


def test_a_buffer_that_is_filled_again_at_once_was_copied_whole(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    run = run_under(gpurun, tmp_path, TRAIN, {"async_copies": "stage"})
    assert run.outcomes("async_copies") == ["applied"]
    assert run.printed == {"wrong": 0}
