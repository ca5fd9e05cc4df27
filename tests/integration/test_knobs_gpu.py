"""What knobs do only on a CUDA device: graphs, fused states on the device, pinned batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.knob_runs import run_under
from tests.integration.noisy_training import noisy_training

pytestmark = pytest.mark.gpu

TRAIN = """
import copy, json
import torch
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 1
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(640, 16)
data = TensorDataset(x, x.argmax(1) % 4)
loader, evaluation = DataLoader(data, batch_size=32), DataLoader(data, batch_size=64)
losses, kept, scores = [], [], []
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        pinned = x.is_pinned()
        out = model(x.cuda())
        kept.append(out.detach())
        loss = torch.nn.functional.cross_entropy(out, y.cuda()) / ACCUMULATE
        loss.backward()
        losses.append(loss)
        if (i + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)
    with torch.no_grad():
        score = [model(x.cuda()) for x, _ in evaluation]
    scores.append(torch.cat(score).sum().item())
state = saved["state"][0]
print(json.dumps({
    "losses": [x.item() for x in losses], "kept": [x.sum().item() for x in kept],
    "scores": scores, "dtype": str(out.dtype), "pinned": pinned,
    "compiled": model._compiled_call_impl is not None,
    "step": [str(state["step"].device), str(state["step"].dtype), state["step"].item()],
    "moment": str(state["exp_avg"].device),
    "group": {k: v for k, v in saved["param_groups"][0].items() if k != "params"},
}))
"""
FIGURES = ("losses", "kept", "scores")
SAME = ("dtype", "step", "moment", "group")


@pytest.fixture
def train(tmp_path: Path, gpurun: Callable[..., Any]) -> Callable[..., Any]:
    """Train under settings, in batches of 32 that are accumulated when asked."""

    def run(settings: dict[str, Any], accumulate: int = 1) -> Any:
        script = TRAIN.replace("ACCUMULATE = 1", f"ACCUMULATE = {accumulate}")
        return run_under(gpurun, tmp_path, script, settings)

    return run


def agrees(tuned: Any, bare: Any, rel: float) -> None:
    for name in FIGURES:
        assert tuned[name] == pytest.approx(bare[name], rel=rel, abs=rel * 10), name
    for name in SAME:
        assert tuned[name] == bare[name], name


def test_a_fused_optimizer_saves_and_loads_what_the_plain_one_does(train: Any) -> None:
    run = train({"fused_optimizer": "fused", "loader_pin_memory": True})
    assert run.outcomes("fused_optimizer") == ["applied"]
    assert run.printed["pinned"]
    assert run.printed["step"][0] == "cpu"
    agrees(run.printed, train({}).printed, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reduce-overhead", "default"])
def test_compiled_training_keeps_outputs_that_the_script_keeps(train: Any, mode: str) -> None:
    run = train({"compile": mode})
    assert run.printed["compiled"]
    agrees(run.printed, train({}).printed, rel=1e-2)


@pytest.mark.slow
def test_under_accumulation_the_model_is_compiled_without_cuda_graphs(train: Any) -> None:
    run = train({"compile": "reduce-overhead"}, accumulate=4)
    why = "graphs would overwrite the first of several forward passes a step"
    assert run.knobs == [("compile", "applied", f"Sequential: default, for {why}")]
    assert run.printed["compiled"]
    agrees(run.printed, train({}, accumulate=4).printed, rel=1e-2)


SMALL_STEPS = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for x in batches:
    loss = loss_of(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps(losses))
"""
MASKED = (
    """
import json
import torch

class Net(torch.nn.Module):
    mask = None
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 64), torch.nn.Linear(64, 4)
    def forward(self, x):
        if self.mask is None or len(self.mask) != len(x):
            self.mask = torch.ones(len(x), 1, device=x.device).cumsum(0) % 2
        return self.last(self.first(x).relu() * self.mask)

torch.manual_seed(0)
model = Net().cuda()
batches = (torch.randn(32, 16).cuda() for _ in range(12))
loss_of = lambda out, x: torch.nn.functional.cross_entropy(out, x.argmax(1) % 4)
"""
    + SMALL_STEPS
)


@pytest.mark.slow
def test_a_model_that_keeps_a_mask_is_compiled_without_cuda_graphs(
    tmp_path: Path, gpurun: Callable[..., Any]
) -> None:
    """Graphs write the mask of one step to the memory of another: torch raises an error there."""
    run = run_under(gpurun, tmp_path, MASKED, {"compile": "reduce-overhead"})
    why = "graphs would overwrite mask, which the model keeps"
    assert run.knobs == [("compile", "applied", f"Net: default, for {why}")]
    assert run.printed == pytest.approx(run_under(gpurun, tmp_path, MASKED, {}).printed, rel=1e-2)


@pytest.mark.slow
def test_all_numerics_knobs_together(train: Any) -> None:
    run = train({"fused_optimizer": "fused", "autocast": "bf16", "compile": "reduce-overhead"})
    assert set(run.outcomes("autocast") + run.outcomes("compile")) == {"applied"}
    agrees(run.printed, train({}).printed, rel=0.1)


LENGTHS = (
    """
import json, random
import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()
batches = (torch.randn(8, random.randint(3, 40), 16).cuda() for _ in range(30))
loss_of = lambda out, x: (out - x[..., :4]).square().mean()
"""
    + SMALL_STEPS
)


@pytest.mark.slow
def test_inputs_of_many_lengths_are_compiled_without_a_cuda_graph_for_each(
    tmp_path: Path, gpurun: Callable[..., Any]
) -> None:
    run = run_under(gpurun, tmp_path, LENGTHS, {"compile": "reduce-overhead"})
    why = "the input had 11 shapes, each with its own graph"
    assert run.knobs[-1] == ("compile", "applied", f"Sequential: default, for {why}")
    bare = run_under(gpurun, tmp_path, LENGTHS, {})
    assert run.printed == pytest.approx(bare.printed, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reduce-overhead", "default"])
def test_a_compiled_model_draws_the_noise_that_it_draws_uncompiled(
    tmp_path: Path, gpurun: Callable[..., Any], mode: str
) -> None:
    script = noisy_training("cuda")
    run = run_under(gpurun, tmp_path, script, {"compile": mode})
    assert run.knobs == [("compile", "applied", f"Noisy: {mode}")]
    bare = run_under(gpurun, tmp_path, script, {})
    assert run.printed == pytest.approx(bare.printed, rel=1e-3)
