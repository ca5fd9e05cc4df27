"""What is compiled, and stays right in a training that does more now and then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Gpurun
from tests.integration.knob_runs import bare, run_under
from tests.integration.noisy_training import noisy_training

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


@pytest.mark.slow  # quick twin: test_bad_compilations.py
def test_a_container_of_torchs_own_is_compiled_and_its_graph_may_be_retained(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    run = run_under(gpurun, tmp_path, SCRIPT, {"compile": "default"})
    assert run.knobs == [("compile", "applied", "Sequential: default")]
    assert run.printed == pytest.approx(bare(tmp_path, SCRIPT), rel=1e-5)


TRACED = """
import json, warnings
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.tensorboard import SummaryWriter

warnings.simplefilter("ignore")
torch.manual_seed(0)
torch.set_num_threads(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    def forward(self, x):
        return self.body(x).exp()

class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x):
        return self.inner(x)

def train():
    loss = model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

def directional():
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        return torch.autograd.forward_ad.unpack_dual(model(dual)).tangent

model, x, losses = Net(), torch.randn(16, 8), []
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    train()
torch.jit._get_trace_graph(model, (x,))  # as torch.onnx.export(dynamo=False) does
writer = SummaryWriter("events")
writer.add_graph(model, x)
writer.close()
traces = [torch.jit.trace(model, x), make_fx(model)(x), torch.fx.symbolic_trace(Outer(model)),
          torch.export.export(model, (x,)).module(),
          torch.export.export(model, (x,), strict=True).module()]
expected = model.body(x).exp()
for trace in traces:
    torch.testing.assert_close(trace(x), expected)
slopes = torch.func.jvp(model, (x,), (x,))[1]
torch.testing.assert_close(directional(), slopes)
curvature = torch.autograd.functional.hessian(lambda x: model(x).sum(), x)
for step in range(2):
    train()
print(json.dumps([*losses, slopes.sum().item(), curvature.sum().item()]))
"""


def test_a_compiled_model_is_traced_and_differentiated_otherwise_by_its_own_code(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    run = run_under(gpurun, tmp_path, TRACED, {"compile": "default"})
    assert run.knobs == [("compile", "applied", "Net: default")]
    assert run.printed == pytest.approx(bare(tmp_path, TRACED), rel=1e-5)


HOOKED = """
import json
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

torch.manual_seed(0)
torch.set_num_threads(1)
inner = nn.Linear(32, 32)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), inner, nn.Sigmoid(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
calls, losses = [], []

def passes(module, inputs):
    calls.append("pre")
    return 2 * inputs[0]

def returns(module, inputs, output):
    calls.append("forward")
    return 3 * output

def gets(module, gradients, _):
    calls.append("backward")
    return tuple(5 * gradient for gradient in gradients)

def put_directly():
    inner._forward_hooks[0] = returns
    return inner._forward_hooks.clear

def train():
    for _ in range(2):
        loss = model(torch.randn(16, 8)).exp().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

for come in [
    lambda: inner.register_forward_pre_hook(passes).remove,
    lambda: inner.register_forward_hook(returns).remove,
    lambda: inner.register_full_backward_hook(gets).remove,
    lambda: model.register_forward_hook(returns).remove,
    lambda: register_module_forward_hook(returns).remove,
    put_directly,
]:
    train()
    go = come()
    train()
    go()
print(json.dumps({"calls": calls, "losses": losses}))
"""


def test_hooks_that_a_script_registers_later_run_beside_a_compiled_model(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    run = run_under(gpurun, tmp_path, HOOKED, {"compile": "default"})
    alone = bare(tmp_path, HOOKED)
    assert run.printed["calls"] == alone["calls"]
    assert run.printed["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    detail = "not while hooks are there that the script registered later"
    assert run.knobs == [("compile", "applied", d) for d in ("Sequential: default", detail)]


@pytest.mark.slow  # quick twin: the traced model, above
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_compiled_model_draws_the_same_noise_unless_it_has_dropout(
    tmp_path: Path, gpurun: Gpurun, dropout: float
) -> None:
    script = noisy_training("cpu", dropout)
    run = run_under(gpurun, tmp_path, script, {"compile": "default"})
    assert run.knobs == [("compile", "applied", "Noisy: default")]
    same = run.printed == pytest.approx(bare(tmp_path, script), rel=1e-5)
    assert same is (dropout == 0.0)


PENALTY = """
import torch

def penalty(model, x, {parameter}):
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, {argument})
    return slope.square().sum()
"""
PENALIZED = """
import json, sys
import torch
from torch import nn

sys.path.insert(0, FOLDER)
from regularization import penalty

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(10):
    x = torch.randn(16, 8)
    loss = model(x).square().mean()
    if step % 4 == 3:
        loss = loss + penalty(model, x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps(losses))
"""
NOT_TWICE = "create_graph=True: torch.compile supports no double backward"


@pytest.mark.slow  # quick twin: the traced model, above
@pytest.mark.parametrize(
    ("folder", "parameter", "argument", "outcome"),
    [
        ("own", "*_", "create_graph=True", ("skipped", f"regularization.py:6: {NOT_TWICE}")),
        ("own", "twice=True", "create_graph=twice", ("applied", "Sequential: default")),
        ("site-packages", "*_", "create_graph=True", ("applied", "Sequential: default")),
    ],
)
def test_a_gradient_penalty_that_comes_late_never_meets_compiled_code(
    tmp_path: Path,
    gpurun: Gpurun,
    folder: str,
    parameter: str,
    argument: str,
    outcome: tuple[str, str],
) -> None:
    """The script's own source shows it beforehand; a library's shows in its input alone."""
    (tmp_path / folder).mkdir()
    source = PENALTY.format(parameter=parameter, argument=argument)
    (tmp_path / folder / "regularization.py").write_text(source)
    script = PENALIZED.replace("FOLDER", repr(folder))
    run = run_under(gpurun, tmp_path, script, {"compile": "default"})
    assert run.knobs == [("compile", *outcome)]
    assert run.printed == pytest.approx(bare(tmp_path, script), rel=1e-5)


PARTIAL = """
import json
import torch
from torch import nn
from torch._dynamo.utils import counters

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for epoch in range(2):
    for size in [16] * 30 + [5]:
        loss = model(torch.randn(size, 8)).exp().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        losses.append(model(torch.randn(16, 8)).mean().item())
print(json.dumps({"losses": losses, "graphs": counters["stats"]["unique_graphs"]}))
"""


@pytest.mark.slow  # quick twin: unit/test_knobs_rare_calls.py
def test_nothing_is_compiled_for_the_last_batch_of_an_epoch(tmp_path: Path, gpurun: Gpurun) -> None:
    run = run_under(gpurun, tmp_path, PARTIAL, {"compile": "default"})
    assert run.knobs == [("compile", "applied", "Sequential: default")]
    assert run.printed["graphs"] == 2, "one to train and one to evaluate"
    assert run.printed["losses"] == pytest.approx(bare(tmp_path, PARTIAL)["losses"], rel=1e-5)
