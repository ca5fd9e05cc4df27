"""Checkpointed blocks: less memory, and a training that is the same to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.integration.knob_runs import KnobRun, bare, run_under

TRAIN = """
import copy, json, random
import numpy, torch
from torch import nn
import torch.nn.functional as F

random.seed(0), numpy.random.seed(0), torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, momentum=MOMENTUM)
        self.up = SPECTRAL
        self.drop, self.down = nn.Dropout(0.2), nn.Linear(4 * width, width)
    def forward(self, x, scale=None):
        if self.training and random.random() < 0.2:
            return x
        if self.training:
            x = x * (1 + 0.1 * float(numpy.random.rand()))
        return x + self.down(self.drop(F.gelu(self.up(self.norm(x))))) * scale

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(16, 32)
        self.blocks = nn.ModuleList(Block(32) for _ in range(6))
        self.head = nn.Linear(32, 4)
    def forward(self, x):
        x, scale = self.stem(x), torch.ones(1)
        for block in self.blocks:
            x = block(x, scale=scale)
        return self.head(x)

def main():
    model = Net()
    seen = []
    hook = model.blocks[1].register_forward_hook(lambda module, args, out: seen.append(out))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, kept, scores, held = [], 0, [], {}
    def pack(tensor):
        held[tensor.data_ptr()] = 0 if isinstance(tensor, nn.Parameter) else tensor.nbytes
        return tensor
    for step in range(9):
        x = torch.randn(64, 16)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = model(x)
            kept = max(kept, sum(held.values()) if step else 0)
            held.clear()
        loss = F.cross_entropy(out, x.argmax(1) % 4)
        optimizer.zero_grad()
        loss.backward(retain_graph=step == 3)
        if step == 3:
            loss.backward()
        if step == 4:
            noisy = x.clone().requires_grad_()
            norms = model(noisy).norm(dim=1).sum()
            torch.autograd.grad(norms, noisy, create_graph=True)[0].square().sum().backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 4 == 3:
            model.eval()
            with torch.no_grad():
                scores.append(model(torch.ones(8, 16)).sum().item())
            model.train()
    ema = copy.deepcopy(model)
    with torch.no_grad():
        for weight in ema.parameters():
            weight.zero_()
    hook.remove()
    if SAVED:
        torch.save(model, "model.pt")
    print(json.dumps({
        "losses": losses, "scores": scores, "kept": kept, "hooked": len(seen),
        "statistics": [block.norm.running_mean.sum().item() for block in model.blocks],
        "updates": [int(block.norm.num_batches_tracked) for block in model.blocks],
        "keys": sorted(model.state_dict()), "attributes": sorted(vars(model.blocks[0])),
        "zeroed_copy": ema(torch.ones(8, 16)).abs().sum().item(),
        "draws": [random.random(), float(numpy.random.rand()), torch.rand(()).item()],
    }))

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def train(tmp_path: Path, gpurun: Gpurun) -> Callable[..., KnobRun]:
    """Run a script with blocks checkpointed, or with other settings."""

    def run(script: str, value: Any = "blocks", **settings: Any) -> KnobRun:
        return run_under(gpurun, tmp_path, script, {"checkpointing": value, **settings})

    return run


SPECTRAL = "nn.utils.parametrizations.spectral_norm(nn.Linear(width, 4 * width))"


def script_with(layer: str, momentum: str = "0.1") -> str:
    """The training with a layer in each block; torch saves no parametrized one as a whole."""
    saved = "0" if layer == SPECTRAL else "1"
    script = TRAIN.replace("MOMENTUM", momentum).replace("SPECTRAL", layer)
    return script.replace("SAVED", saved)


@pytest.mark.parametrize(("value", "momentum", "part"), [("blocks", "0.1", 3), ("half", "None", 1)])
def test_less_is_kept_and_the_training_is_the_same_to_the_last_bit(
    train: Any, tmp_path: Path, value: str, momentum: str, part: int
) -> None:
    script = script_with(SPECTRAL, momentum)
    run, plain = train(script, value), bare(tmp_path, script)
    assert "applied" in run.outcomes("checkpointing")
    assert run.printed.pop("kept") * part < plain.pop("kept")
    assert run.printed == plain


def test_a_saved_model_loads_and_trains_without_gpurun(train: Any, tmp_path: Path) -> None:
    train(script_with("nn.Linear(width, 4 * width)"))
    code = (
        "import sys, torch, train, __main__\n"
        "__main__.Net, __main__.Block = train.Net, train.Block\n"
        "model = torch.load('model.pt', weights_only=False)\n"
        "model(torch.ones(2, 16)).sum().backward()\n"
        "assert not [name for name in sys.modules if name.startswith('gpurun')]\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True)


AWKWARD = """
import json
import torch
from torch import nn

class Cache:
    def __init__(self):
        self.items = []

class Block(nn.Module):
    generator = torch.Generator().manual_seed(3)
    def __init__(self):
        super().__init__()
        self.line, self.act = nn.Linear(8, 8), nn.Tanh()

class Draws(Block):
    def forward(self, x):
        return x * torch.rand(x.shape, generator=self.generator) + self.act(self.line(x))

class Caches(Block):
    def forward(self, x, cache):
        cache.items.append(x)
        return self.act(self.line(torch.stack(cache.items).mean(0)))

class ChangesItsInput(Block):
    def forward(self, x):
        return x.mul_(1.5) + self.act(self.line(x.clone()))

class IsFollowedByAChange(Block):
    def forward(self, x):
        return self.line(torch.sigmoid(x))

class Net(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(block() for _ in range(2))
    def forward(self, x):
        x, cache = self.stem(x), Cache()
        for block in self.blocks:
            if isinstance(block, IsFollowedByAChange):
                y = block(x)
                x += y
            else:
                x = block(x, cache) if isinstance(block, Caches) else block(x)
        return x

class Plain(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.line = nn.Linear(8, 8)
    def forward(self, x):
        return self.line(x)

found = {}
for block in (Draws, Caches, ChangesItsInput, IsFollowedByAChange, None):
    torch.manual_seed(0)
    model = (Net if block else Plain)(block)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        if block is Draws:
            Block.generator.manual_seed(len(losses))
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    gradients = [p.grad.sum().item() for p in model.parameters()]
    found[block.__name__ if block else None] = [losses, gradients]
print(json.dumps(found))
"""


def test_blocks_that_cannot_run_twice_are_left_as_they_are(train: Any, tmp_path: Path) -> None:
    run, plain = train(AWKWARD), bare(tmp_path, AWKWARD)
    reasons = [detail for _, outcome, detail in run.knobs if outcome == "skipped"]
    assert reasons == [
        "Draws: its forward returns another result when it runs again",
        "Caches: it is given an object (Cache)",
        "ChangesItsInput: it changes its input in place",
        "IsFollowedByAChange: its input is changed in place after it ran",
        "Plain has no repeated blocks",
    ]
    assert run.printed.pop("Draws") != plain.pop("Draws"), "it drew to be judged"
    assert run.printed == plain


FAILS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Sequential(nn.Linear(8, 8))
    def forward(self, x):
        if x.shape[0] == 3:
            raise ValueError("three")
        return self.line(x)

model = nn.Sequential(Block(), Block())
for rows in (2, 2, 3):
    model(torch.ones(rows, 8)).sum().backward()
"""


def test_a_block_that_raises_does_so_without_a_line_of_ours(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text(FAILS)
    (tmp_path / "s.json").write_text('{"settings": {"checkpointing": "blocks"}}')
    ours = gpurun("--settings", "s.json", "train.py").stderr.decode()
    command = [sys.executable, "train.py"]
    plain = subprocess.run(command, cwd=tmp_path, capture_output=True).stderr.decode()
    assert plain.split("Traceback")[1].strip() in ours


SWITCH = """
import json
import torch
from torch import nn

class Model(nn.Module):
    supports_gradient_checkpointing = True
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8)) for _ in range(2)))
        self.gradient_checkpointing, self.asked = START, None
    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        self.gradient_checkpointing, self.asked = True, gradient_checkpointing_kwargs
    def forward(self, x):
        return self.blocks(x)

model = Model()
if COMPILED:
    model.compile(backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
print(json.dumps(model.asked))
"""


@pytest.mark.parametrize(
    ("start", "compiled", "asked", "told"),
    [
        ("False", "0", {"use_reentrant": False}, ("applied", "Model: its own switch")),
        ("True", "0", None, ("skipped", "the script checkpoints by itself")),
        ("False", "1", None, ("skipped", "the model is compiled")),
    ],
)
def test_a_models_own_switch_is_used_and_what_the_script_chose_stands(
    train: Any, start: str, compiled: str, asked: Any, told: tuple[str, str]
) -> None:
    run = train(SWITCH.replace("START", start).replace("COMPILED", compiled))
    assert run.printed == asked
    ((_, outcome, detail),) = run.knobs
    assert (outcome, detail[: len(told[1])]) == told


RECORDED = """
import json, warnings
import torch
import torch.nn.functional as F
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Sequential(nn.Linear(8, 8))
    def forward(self, x):
        return F.gelu(self.line(x))

model = nn.Sequential(Block(), Block())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(8, 8)).square().mean().backward()
    optimizer.step()
warnings.simplefilter("ignore")
x = torch.ones(8, 8)
weights = dict(model.named_parameters())
loss = lambda weights: torch.func.functional_call(model, weights, x).sum()
ways = {
    "scripted": torch.jit.script(model), "traced": torch.jit.trace(model, x),
    "symbolic": torch.fx.symbolic_trace(model), "compiled": torch.compile(model, backend="eager"),
    "exported": torch.export.export(model, (x,)).module(),
}
model(x).sum().backward()
torch.func.grad(loss)(weights)
torch.func.vmap(lambda row: model(row), randomness="different")(x)
print(json.dumps({name: torch.allclose(way(x), model(x)) for name, way in ways.items()}))
"""


def test_the_model_can_still_be_exported_and_differentiated_otherwise(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    run = run_under(gpurun, tmp_path, RECORDED, {"checkpointing": "blocks"})
    assert [outcome for _, outcome, _ in run.knobs] == ["applied"]
    assert set(run.printed.values()) == {True}
    assert len(run.printed) == 5
