"""What is compiled, and stays right in a training that does more now and then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Gpurun
from tests.integration.knob_runs import bare, run_under

SCRIPT = """
import json
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
wide, middle, narrow = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)
model = nn.Sequential(wide, nn.Tanh(), middle, nn.Sigmoid(), narrow)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(8):
    out = model(torch.randn(16, 8))
    part, whole = out[:, 0].square().mean(), out.exp().mean()
    optimizer.zero_grad()
    if step > 4:
        part.backward(retain_graph=True)
    whole.backward()
    optimizer.step()
    losses.append(whole.item())
print(json.dumps(losses))
"""


def test_a_container_of_torchs_own_is_compiled_and_its_graph_may_be_retained(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    run = run_under(gpurun, tmp_path, SCRIPT, {"compile": "default"})
    assert run.knobs == [("compile", "applied", "Sequential: default")]
    assert run.printed == pytest.approx(bare(tmp_path, SCRIPT), rel=1e-5)
