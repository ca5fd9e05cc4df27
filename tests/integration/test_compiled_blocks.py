"""Repeated blocks that are compiled once, in a training that does more now and then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Gpurun
from tests.integration.knob_runs import bare, run_under

MODEL = """
import copy, io, json
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.set_num_threads(1)

class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.norm, self.layer, self.number = nn.LayerNorm(8), nn.Linear(8, 8), number

    def forward(self, x):
        return x + torch.tanh(self.layer(self.norm(x))) / (1 + self.number)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        self.blocks = nn.ModuleList([Block(number) for number in range(12)])
        self.reentrant = None

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)

model = Net()
names = list(model.state_dict())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses, calls = [], []

def train(batch=16, steps=1, penalty=False):
    for _ in range(steps):
        x = torch.randn(batch, 4)
        loss = model(x).square().mean()
        if penalty:
            x.requires_grad_()
            (slope,) = torch.autograd.grad(model(x).sum(), x, **{"create" + "_graph": True})
            loss = loss + slope.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""

TRAINED = """
train(steps=16)
graphs = counters["stats"].get("unique_graphs", 0)
train(batch=5)  # the last of an epoch
train(penalty=True)
later = counters["stats"].get("unique_graphs", 0) - graphs
handle = model.blocks[3].layer.register_forward_hook(lambda m, x, y: calls.append("hook") or 2 * y)
train(steps=2)
handle.remove()
for model.reentrant in (False, True):
    train()
    train(batch=3)
model.reentrant = None
average = copy.deepcopy(model)
torch.save(model, file := io.BytesIO())
file.seek(0)
loaded = torch.load(file, weights_only=False)
x = torch.randn(16, 4)
model.eval()
with torch.no_grad():
    outputs = [m(x).sum().item() for m in (model, average, loaded)]
exported = torch.export.export(model, (x,), strict=True).module()(x).sum().item()
print(json.dumps({"losses": losses, "calls": calls, "outputs": [*outputs, exported],
                  "graphs": [graphs, later], "names": names == list(loaded.state_dict())}))
"""


@pytest.mark.slow  # quick twin: blocks of torch's own, below
def test_blocks_share_their_code_and_keep_what_a_compiled_model_keeps(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    """The number of its layer takes one graph more: the second is for any."""
    run = run_under(gpurun, tmp_path, MODEL + TRAINED, {"compile": "regional"})
    alone = bare(tmp_path, MODEL + TRAINED)
    hooked = "not while hooks are there that the script registered later"
    blocks = "Net: regional, 12 × Block, graphs: 2"
    assert run.knobs == [("compile", "applied", detail) for detail in (blocks, hooked)]
    assert run.printed["graphs"] == [2, 0]
    for what in ("losses", "outputs"):
        assert run.printed[what] == pytest.approx(alone[what], rel=1e-5)
    assert run.printed["calls"] == alone["calls"] == ["hook", "hook"]
    assert run.printed["names"] is True


TORCHS_OWN = """
import json
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
model = {model}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(4):
    loss = model(torch.randn(4, 6, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps(losses))
"""


@pytest.mark.parametrize(
    ("model", "outcome"),
    [
        (
            "nn.TransformerEncoder(layer, 10, enable_nested_tensor=False)",
            (
                "applied",
                "TransformerEncoder: regional, 10 × TransformerEncoderLayer, graphs: 2",
            ),
        ),
        (
            "nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))",
            ("skipped", "Sequential: no block of layers repeats that holds most of the model"),
        ),
    ],
)
def test_blocks_of_torchs_own_are_compiled_and_models_without_blocks_are_left(
    tmp_path: Path, gpurun: Gpurun, model: str, outcome: tuple[str, str]
) -> None:
    """The input of the first block requires no gradient: its graph is another."""
    script = TORCHS_OWN.replace("{model}", model)
    run = run_under(gpurun, tmp_path, script, {"compile": "regional"})
    assert run.knobs == [("compile", *outcome)]
    assert run.printed == pytest.approx(bare(tmp_path, script), rel=1e-5)
