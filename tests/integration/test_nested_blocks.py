"""Repeated blocks that are compiled once, in a training that does more now and then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Gpurun
from tests.integration.knob_runs import bare, run_under

COMPILE = {"compile": "default"}
ONCE = "Net: default, 6 × Block compiled once"
NOT_ONCE = "Net: default; its blocks are not compiled once: "

BEGIN = """
import copy, inspect, io, json
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.set_num_threads(1)
"""
NET = """
class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.norm, self.layer, self.number = nn.LayerNorm(8), nn.Linear(8, 8), number

    def forward(self, x, scale=1.0):
        return x + scale * torch.tanh(self.layer(self.norm(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        self.blocks = nn.ModuleList([Block(number) for number in range(6)])
        self.checkpoints = False

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return self.head(x)
"""
MODEL = """
model = Net()
names, losses, calls = list(model.state_dict()), [], []
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(batch=16, steps=1):
    for _ in range(steps):
        loss = model(torch.randn(batch, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""
TRAINED = """
before = model.blocks[0].register_forward_hook(lambda m, x, y: 0.5 * y)
slopes = model.blocks[1].layer.weight.register_hook(lambda slope: 2 * slope)
train(steps=16)
graphs = counters["stats"].get("unique_graphs", 0)
train(batch=5)  # the last of an epoch
later = model.blocks[3].layer.register_forward_hook(lambda m, x, y: calls.append("later") or 2 * y)
train(steps=2)
later.remove()
train()
more = counters["stats"].get("unique_graphs", 0) - graphs
average = copy.deepcopy(model)
torch.save(model.state_dict(), file := io.BytesIO())
x = torch.randn(16, 4)
model.eval()
with torch.no_grad():
    outputs = [m(x[:size]).sum().item() for m in (model, average) for size in (16, 7)]
exported = torch.export.export(average, (x,), strict=True)
outputs.append(exported.module()(x).sum().item())
model.train()
model.checkpoints = True
train(steps=2)
block = model.blocks[0]
signature = str(inspect.signature(block.forward))
print(json.dumps({
    "losses": losses, "calls": calls, "outputs": outputs, "graphs": [graphs, more],
    "same": names == list(model.state_dict()) and type(block) is Block
            and "forward" not in vars(block) and "scale=1.0" in signature,
    "exported": "invoke_subgraph" in str(exported.graph)}))
"""


def test_blocks_share_a_graph_and_keep_what_a_compiled_model_keeps(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    """Hooks of before and later, a partial batch, evaluation, a copy, an export. At last the script
    checkpoints its blocks: from then on each is compiled by itself.
    """
    script = BEGIN + NET + MODEL + TRAINED
    run, alone = run_under(gpurun, tmp_path, script, COMPILE), bare(tmp_path, script)
    hooked = "not while hooks are there that the script registered later"
    told = [detail for _, _, detail in run.knobs]
    assert told[:2] == [ONCE, hooked]
    assert told[2].startswith(NOT_ONCE + "there is tag_activation_checkpoint")
    assert {outcome for _, outcome, _ in run.knobs} == {"applied"}
    assert run.printed["graphs"] == [1, 0]
    for what in ("losses", "outputs"):
        assert run.printed[what] == pytest.approx(alone[what], rel=1e-5)
    for what in ("calls", "same", "exported"):
        assert run.printed[what] == alone[what]
    assert (alone["same"], alone["exported"]) == (True, False)


MASKS = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.weight = nn.Dropout(0.5), nn.Parameter(torch.ones(64))
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.layer(x)), self.drop(self.weight * 2)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(6)])

    def forward(self, x):
        seen = []
        for block in self.blocks:
            x, one = block(x)
            seen.append(one)
        return x, torch.stack(seen)

model, masks, fits = Net(), [], []
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(4):
    x, seen = model(torch.randn(8, 4))
    optimizer.zero_grad()
    (x.square().mean() + seen.sum()).backward()
    optimizer.step()
    slopes = torch.stack([block.weight.grad for block in model.blocks])
    masks += (seen.detach() != 0).tolist()
    fits.append(torch.equal(slopes, seen.detach()))
model.eval()
print(json.dumps({"fits": fits, "masks": masks, "plain": bool((model(x)[1] == 2).all())}))
"""


def test_each_block_and_step_draws_its_own_mask_which_the_backward_pass_repeats(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    run = run_under(gpurun, tmp_path, BEGIN + MASKS, COMPILE)
    assert run.knobs[0] == ("compile", "applied", ONCE)
    assert all(run.printed["fits"])
    masks = {tuple(mask) for mask in run.printed["masks"]}
    assert len(masks) == 6 * 4, "no two of them are equal"
    assert all(8 < sum(mask) < 56 for mask in masks)
    assert run.printed["plain"]


NOISE = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.weight = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, x):
        kept = torch.rand(x.shape[0], 1) < 0.5
        return x + self.weight * torch.tanh(self.layer(x)) * kept * torch.rand_like(x)
"""


@pytest.mark.slow  # quick twin: the masks of dropout, above
def test_noise_that_blocks_draw_by_functions_is_that_of_the_script(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    """A model without dropout modules draws its numbers as it does uncompiled."""
    net = NET[NET.index("class Net") :].replace("Block(number)", "Block()").replace("8", "4")
    script = BEGIN + NOISE + net + MODEL + "train(steps=6)\nprint(json.dumps(losses))\n"
    run = run_under(gpurun, tmp_path, script, COMPILE)
    assert run.knobs == [("compile", "applied", ONCE)]
    assert run.printed == pytest.approx(bare(tmp_path, script), rel=1e-5)


END = """
train(steps=4)
model.eval()
with torch.no_grad():
    losses.append(model(torch.ones(16, 4)).sum().item())
state = [value.double().sum().item() for value in model.state_dict().values()]
print(json.dumps({"losses": losses, "state": state, "calls": len(calls)}))
"""
REFUSED = {
    "running averages": (
        ("nn.LayerNorm(8)", "nn.BatchNorm1d(8)"),
        "BatchNorm1d writes running averages",
    ),
    "a counter": (
        ("return x +", "self.seen.add_(x.detach().abs().mean())\n        return self.seen * x +"),
        "a block changes a tensor that it does not own",
    ),
    "its input": (
        ("return x +", "x.mul_(0.9)\n        return x +"),
        "a block changes a tensor that it does not own",
    ),
    "a value read": (
        ("return x +", "calls.append(x.sum().item())\n        return x +"),
        "",
    ),
    "an input handed back": (("return x + scale *", "return x, x + scale *"), ""),
    "its number": (
        ("scale * torch", "(1 + self.number) * scale * torch"),
        "no two of its blocks have the same graph",
    ),
    "a backward pass of its own": (
        ("torch.tanh", "Own.apply"),
        "there is autograd_function_apply in a block or around it",
    ),
}
OWN = """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return 0.5 * slope * (1 - torch.tanh(x).square())
"""


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=() if what == "a value read" else pytest.mark.slow)
        for what in REFUSED
    ],
)
def test_blocks_that_torch_would_compile_otherwise_are_compiled_each_by_itself(
    tmp_path: Path, gpurun: Gpurun, what: str
) -> None:
    (before, after), reason = REFUSED[what]
    net = NET.replace(before, after).replace("= number", "= number\n        BUFFER")
    net = net.replace("BUFFER", 'self.register_buffer("seen", torch.ones(()))')
    if what == "an input handed back":
        net = net.replace("else block(x)", "else block(x)[1]")
    script = BEGIN + OWN + net + MODEL + END
    run, alone = run_under(gpurun, tmp_path, script, COMPILE), bare(tmp_path, script)
    (told,) = run.knobs
    assert told[1] == "applied"
    assert told[2].startswith(NOT_ONCE + reason)
    assert run.printed["calls"] == alone["calls"], "nothing ran twice"
    for figures in ("losses", "state"):
        assert run.printed[figures] == pytest.approx(alone[figures], rel=1e-5)


ACCEPTED = {
    "autocast inside": (
        "        return x +",
        "        with torch.autocast('cpu', torch.bfloat16):\n"
        "            x = self.layer(x).float()\n        return x +",
    ),
    "no gradient inside": (
        "        return x +",
        "        with torch.no_grad():\n            scale = x.std()\n        return x +",
    ),
    "keywords and nested tuples": (
        "else block(x)",
        "else block(scale=(0.5, [x.mean(), None])[1][0], x=x)",
    ),
    "frozen blocks": (
        "self.checkpoints = False",
        "self.checkpoints = False\n        self.blocks[:3].requires_grad_(False)",
    ),
    "a block that is called twice": ("else block(x)", "else block(block(x))"),
}


@pytest.mark.slow  # quick twin: the first test of this file
@pytest.mark.parametrize("what", ACCEPTED)
def test_blocks_of_other_forms_are_compiled_once_and_train_the_same(
    tmp_path: Path, gpurun: Gpurun, what: str
) -> None:
    net = NET.replace(*ACCEPTED[what])
    end = END.replace("torch.no_grad()", "torch.inference_mode()")
    script = BEGIN + net + MODEL + end
    run, alone = run_under(gpurun, tmp_path, script, COMPILE), bare(tmp_path, script)
    assert run.knobs == [("compile", "applied", ONCE)]
    for figures in ("losses", "state"):
        near = 1e-2 if what == "autocast inside" else 1e-5
        assert run.printed[figures] == pytest.approx(alone[figures], rel=near)


ATTENTION = """
class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.register_buffer("mask", torch.tril(torch.ones(12, 12)).view(1, 1, 12, 12))

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1)) / 2
        length = x.shape[1]
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        y = torch.softmax(scores, -1) @ v
        return x + self.out(y.transpose(1, 2).flatten(2))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        self.blocks = nn.ModuleList([Block(number) for number in range(6)])

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

model, losses = Net(), []
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    if step == 5:
        model.blocks[4].mask.fill_(1.0)  # no longer causal
    loss = model(torch.randn(3, 12, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps(losses))
"""


def test_attention_in_blocks_that_are_compiled_once_is_replaced(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    script = BEGIN + ATTENTION
    run = run_under(gpurun, tmp_path, script, {"attention": "sdpa", **COMPILE})
    assert sorted(run.knobs) == [
        ("attention", "applied", "Net: causal"),
        ("compile", "applied", ONCE),
    ]
    assert run.printed == pytest.approx(bare(tmp_path, script), rel=1e-5)


TORCHS_OWN = """
layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(4):
    loss = model(torch.randn(4, 6, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
kept = counters["aot_autograd"].get("autograd_cache_hit", 0)
print(json.dumps({"losses": losses, "kept": kept}))
"""


@pytest.mark.slow  # quick twin: the blocks of a script's own, above
def test_blocks_of_torchs_own_are_compiled_once_and_their_kernels_kept(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    script = BEGIN + TORCHS_OWN
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "kernels")}
    losses, kept = bare(tmp_path, script)["losses"], []
    for _ in range(2):
        run = run_under(gpurun, tmp_path, script, COMPILE, env=env)
        detail = "TransformerEncoder: default, 6 × TransformerEncoderLayer compiled once"
        assert run.knobs == [("compile", "applied", detail)]
        assert run.printed["losses"] == pytest.approx(losses, rel=1e-5)
        kept.append(run.printed["kept"])
    assert kept == [0, 1]
