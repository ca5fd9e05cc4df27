"""The operations of a step are those that torch's own counter finds, for scripts as they come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import Gpurun
from tests.run_events import events, run_in

pytestmark = pytest.mark.forked

BATCH, WIDTH = 8, 32

HEAD = f"""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
BATCH, WIDTH = {BATCH}, {WIDTH}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.heads = nn.Linear(WIDTH, 3 * WIDTH)
        self.repeat = False
    def block(self, x):
        q, k, v = self.heads(torch.relu(self.inner(x))).chunk(3, dim=-1)
        return nn.functional.scaled_dot_product_attention(q, k, v)
    def forward(self, x):
        x = x.view(2, 1, BATCH // 2, WIDTH)
        return checkpoint(self.block, x, use_reentrant=False) if self.repeat else self.block(x)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = [torch.randn(BATCH, WIDTH) for _ in range(8)]
"""
TRAINING = """
for batch in batches:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
VARIANTS = {
    "plain": TRAINING,
    "checkpointed": "model.repeat = True" + TRAINING,
    "evaluates first": """
with torch.no_grad():
    for _ in range(6):
        model(batches[0][:4].repeat(2, 1))
"""
    + TRAINING,
}


def figures(folder: Path, gpurun: Gpurun, source: str) -> dict[str, Any]:
    (folder / "script.py").write_text(source)
    done = gpurun("--json", "out.json", "script.py")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((folder / "out.json").read_text())
    assert result["hook_errors"] == []
    return result


def counted_by_torch() -> int:
    """A step of the script's model, its attention written out, under torch's own counter."""
    x = torch.randn(BATCH, WIDTH)
    inner, heads = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
    with FlopCounterMode(display=False) as counter:
        q, k, v = heads(torch.relu(inner(x.view(2, 1, BATCH // 2, WIDTH)))).chunk(3, dim=-1)
        (torch.softmax(q @ k.transpose(-1, -2), -1) @ v).square().mean().backward()
    # the fused kernel's backward pass makes the scores a second time
    again = 2 * 2 * (BATCH // 2) ** 2 * WIDTH
    return int(counter.get_total_flops()) + again


@pytest.mark.parametrize(
    "variant",
    [
        "plain",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("checkpointed", "evaluates first")
        ),
    ],
)
def test_a_step_costs_what_torch_counts(tmp_path: Path, gpurun: Gpurun, variant: str) -> None:
    result = figures(tmp_path, gpurun, HEAD + VARIANTS[variant])
    assert result["flops_per_step"] == counted_by_torch()
    assert result["flops_per_second"] > 0
    assert result["mfu"] is None  # nobody knows the peak of a processor


@pytest.mark.forked(False)  # the process that forks has imported dynamo
def test_a_script_that_only_infers_counts_forward_passes(tmp_path: Path, gpurun: Gpurun) -> None:
    source = """
import torch
model = torch.nn.Linear(16, 4).eval()
with torch.inference_mode():
    for _ in range(8):
        model(torch.randn(5, 16))
import sys
assert "torch._dynamo" not in sys.modules, "its import would hold a request up for a second"
"""
    assert figures(tmp_path, gpurun, source)["flops_per_step"] == 2 * 5 * 16 * 4


UNCOUNTED = {
    "a recurrent layer": (
        """
class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent, self.net = nn.LSTM(WIDTH, WIDTH), Net()
    def forward(self, x):
        return self.net(self.recurrent(x)[0])
model = Both()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
        + TRAINING,
        "rnn",
    ),
    "an operator of the script's own": (
        """
@torch.library.custom_op("mine::product", mutates_args=())
def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x.T
class Own(Net):
    def forward(self, x):
        product(x.detach())
        return super().forward(x)
model = Own()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
        + TRAINING,
        "mine.product",
    ),
    "compiled": ("model = torch.compile(model, backend='eager')" + TRAINING, "compile"),
    "a compiled part": (
        "import torch._dynamo\n"
        "model.block = torch._dynamo.optimize('eager')(model.block)" + TRAINING,
        "a part of the step is compiled",
    ),
    "gradients by hand": (
        TRAINING.replace(".backward()", "; torch.autograd.backward([loss], [torch.ones(())])")
        .replace("    model", "    loss = model"),
        "backward passes",
    ),
}  # fmt: skip


QUICK = ("a recurrent layer", "compiled")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in UNCOUNTED],
)
def test_what_cannot_be_counted_is_null_with_a_reason(
    tmp_path: Path, gpurun: Gpurun, case: str
) -> None:
    source, reason = UNCOUNTED[case]
    result = figures(tmp_path, gpurun, HEAD + source)
    assert (result["flops_per_step"], result["flops_per_second"]) == (None, None)
    (event,) = events(run_in(tmp_path), "flops")
    assert reason in event["detail"]


def test_an_error_in_the_counted_step_is_shown_as_python_shows_it(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    source = HEAD + TRAINING.replace(
        "model(batch)", "model(batch if batch is not batches[2] else batch[:5])"
    )
    (tmp_path / "script.py").write_text(source)
    done = gpurun("script.py")
    assert done.returncode == 1
    assert b"RuntimeError: shape" in done.stderr
    assert b"gpurun/" not in done.stderr.split(b"Traceback")[1].split(b"RuntimeError")[0]
