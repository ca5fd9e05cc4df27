"""Attention written by hand: replaced where the tensors prove it right, in whatever form it comes.

Each script trains its model beside a copy that nothing captures, and compares the two.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpurun.knobs.device_requirements import native_on_cpu
from tests.conftest import REPOSITORY, Gpurun, without_verdict
from tests.integration.knob_runs import KnobRun, bare, run_under
from tests.run_events import events

NATIVE_BF16 = pytest.mark.skipif(not native_on_cpu(), reason="this processor emulates bfloat16")

FORMS = """
import copy, json, math
import torch
import torch.nn.functional as F
from torch import nn

T, WIDTH, HEADS = 12, 16, 2
INF = float("inf")

class Form(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)
        ones = torch.ones(T, T)
        self.register_buffer("mask", self.allowed(ones).view(1, 1, T, T))
    def allowed(self, ones):
        return ones.tril()
    def forward(self, x, padding):
        B, t, C = x.shape
        q, k, v = (part.view(B, t, HEADS, C // HEADS).transpose(1, 2) * 2
                   for part in self.qkv(x).split(C, 2))
        y = self.attend(q, k, v, t, padding)
        return self.out(y.transpose(1, 2).reshape(B, t, C))

class NanoGPT(Form):
    def attend(self, q, k, v, t, padding):
        a = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        a = a.masked_fill(self.mask[:, :, :t, :t] == 0, -INF)
        return F.softmax(a, dim=-1) @ v

class Dropped(Form):
    def attend(self, q, k, v, t, padding):
        a = q @ k.transpose(-2, -1) / 3
        a = a.masked_fill(self.mask[:, :, :t, :t] == 0, -INF)
        return self.dropout(F.softmax(a, dim=-1)) @ v

class Prescaled(Form):
    def attend(self, q, k, v, t, padding):
        return torch.matmul(torch.softmax(torch.matmul(q * 0.3, k.transpose(2, 3)), 3), v)

class Additive(Form):
    def allowed(self, ones):
        return torch.full_like(ones, -INF).triu(1)
    def attend(self, q, k, v, t, padding):
        a = q @ k.mT / math.sqrt(q.size(-1)) + self.mask[0, 0, :t, :t]
        return F.softmax(a.float(), dim=-1).type_as(q) @ v

class Chosen(Form):
    def attend(self, q, k, v, t, padding):
        a = torch.matmul(q, k.transpose(-1, -2)) / torch.full([], 2.5, dtype=v.dtype)
        low = torch.full([], torch.finfo(a.dtype).min, dtype=a.dtype)
        a = torch.where(self.mask[:, :, :t, :t].bool(), a, low)
        return torch.matmul(nn.functional.softmax(a, dim=-1).type(v.dtype), v)

class InPlace(Form):
    def attend(self, q, k, v, t, padding):
        a = q @ k.transpose(-2, -1)
        a *= 0.25
        a.masked_fill_(torch.ones(t, t, dtype=torch.bool, device=q.device).triu(1), -1e4)
        return a.softmax(-1) @ v

class Flattened(Form):
    def attend(self, q, k, v, t, padding):
        flat = [x.reshape(-1, t, x.size(-1)) for x in (q, k, v)]
        a = torch.baddbmm(torch.full((t, t), -INF).triu(1), flat[0], flat[1].mT, alpha=0.3)
        return torch.bmm(F.softmax(a, dim=2), flat[2]).view(q.shape)

class Einsum(Form):
    def attend(self, q, k, v, t, padding):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        a = torch.einsum("bthd,bshd->bhts", q, k).mul(0.3).softmax(dim=-1)
        return torch.einsum("bhts,bshd->bthd", a, v).transpose(1, 2)

class Padded(Form):
    def attend(self, q, k, v, t, padding):
        a = (q @ k.transpose(-2, -1)) / 3
        return a.masked_fill(padding[:, None, None, :], -INF).softmax(-1) @ v

class Banded(Form):
    allowed = lambda self, ones: ones.tril() * ones.triu(-3)
    attend = NanoGPT.attend

class Looser(Form):
    allowed = lambda self, ones: ones.tril(1)
    attend = NanoGPT.attend

class Tighter(Form):
    allowed = lambda self, ones: ones.tril(-1)
    def attend(self, q, k, v, t, padding):
        a = (q @ k.transpose(-2, -1)).masked_fill(self.mask[:, :, :t, :t] == 0, -1e9)
        return F.softmax(a, dim=-1) @ v

class Learnt(Form):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(HEADS, T, T))
        self.heat = nn.Parameter(torch.ones(HEADS, 1, 1))
    def attend(self, q, k, v, t, padding):
        a = q @ k.transpose(-2, -1) * self.heat + self.bias[:, :t, :t]
        return a.softmax(-1) @ v

class Cross(Form):
    def attend(self, q, k, v, t, padding):
        return (q[:, :, :5] @ k.mT * 0.5).softmax(-1).matmul(v).mean(2, keepdim=True).expand_as(q)

class Kept(Form):
    def attend(self, q, k, v, t, padding):
        a = (q @ k.transpose(-2, -1)).softmax(-1)
        self.weights = a.detach()
        return a @ v

class Returned(Form):
    def forward(self, x, padding):
        q, k, v = self.qkv(x).unsqueeze(1).split(WIDTH, 3)
        a = (q @ k.transpose(-2, -1)).softmax(-1)
        return (a @ v).squeeze(1), a

class Inner(Returned):
    pass

class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
    def forward(self, x, padding):
        return self.inner(x, padding)[0]

FORMS = [NanoGPT, Dropped, Prescaled, Additive, Chosen, InPlace, Flattened, Einsum, Padded, Banded,
         Looser, Tighter, Learnt, Cross, Kept, Returned, Outer]

class Zoo(nn.Module):
    def __init__(self):
        super().__init__()
        self.forms = nn.ModuleDict({form.__name__: form() for form in FORMS})
    def forward(self, x, padding):
        return {name: form(x, padding) for name, form in self.forms.items()}

def tensor(y):
    return y[0] if isinstance(y, tuple) else y

def far(one, other):
    return float((one - other).detach().norm() / (other.detach().norm() + 1e-2))

def difference(name, model, twin, x, padding):
    results = []
    for zoo in (model, twin):
        torch.manual_seed(2)
        x.grad = None
        zoo.zero_grad()
        y = tensor(zoo(x, padding)[name])
        if y.requires_grad:
            (y * y.detach().cos()).sum().backward()
        grads = [p.grad for p in zoo.forms[name].parameters() if p.grad is not None]
        results.append([y, *([] if x.grad is None else [x.grad]), *grads, torch.rand(1)])
    assert len(results[0]) == len(results[1])
    return max(far(a, b) for a, b in zip(*results))

torch.manual_seed(0)
model = Zoo()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    x = torch.randn(2, T, WIDTH)
    padding = torch.arange(T) >= torch.tensor([[T], [T - 3 - step % 2]])
    loss = sum(tensor(y).float().pow(2).mean() for y in model(x, padding).values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
twin = copy.deepcopy(model)
x = torch.randn(2, T, WIDTH, requires_grad=True)
names = [form.__name__ for form in FORMS]
training = {name: difference(name, model, twin, x, padding) for name in names}
model.eval(), twin.eval()
with torch.no_grad():
    evaluation = {name: difference(name, model, twin, x[:1, :9], padding[:1, :9]) for name in names}
print(json.dumps({
    "training": training, "evaluation": evaluation, "loss": loss.item(),
    "kept": list(model.forms["Kept"].weights.shape),
}))
"""

FATES = {
    "NanoGPT": "causal",
    "Dropped": "the CPU has no fast kernel with dropout",
    "Prescaled": "no mask",
    "Additive": "causal",
    "Chosen": "causal",
    "InPlace": "causal",
    "Flattened": "causal",
    "Einsum": "no mask",
    "Padded": "masked",
    "Banded": "masked",
    "Looser": "masked",
    "Tighter": "its mask hides all of a row",
    "Learnt": "masked",
    "Cross": "no mask",
    "Kept": "its weights are used elsewhere",
    "Returned": "its weights are used elsewhere",
    "Outer": "no mask",
}
"""What becomes of each form in training."""


def close(run: KnobRun, tolerance: float) -> None:
    for mode in ("training", "evaluation"):
        far = {name: x for name, x in run.printed[mode].items() if not x <= tolerance}
        assert far == {}, mode
    assert run.printed["kept"] == [1, 2, 9, 9]


@pytest.mark.slow
def test_each_form_is_replaced_exactly_where_it_can_be(tmp_path: Path, gpurun: Gpurun) -> None:
    run = run_under(gpurun, tmp_path, FORMS, {"attention": "sdpa"})
    close(run, 1e-4)
    told = [detail.partition(": ") for _, _, detail in run.knobs]
    first = {name: fate for name, _, fate in reversed(told)}
    assert first == FATES


@pytest.mark.slow
@NATIVE_BF16
def test_under_autocast_the_kernel_computes_in_its_precision(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    run = run_under(gpurun, tmp_path, FORMS, {"attention": "sdpa", "autocast": "bf16"})
    close(run, 0.1)
    assert ("applied", "NanoGPT: causal") in [event[1:] for event in run.knobs]


LIFE = """
import copy, json, sys
import torch
from char_gpt import CharGPT

torch.manual_seed(0)
model = CharGPT(20, 32, 2, 1, 64)
ema = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

def train(steps, batch=4):
    losses, names = [], set()
    for _ in range(steps):
        x = torch.randint(0, 20, (batch, 32))
        loss = model(x, (x + 1) % 20)[1]
        waiting = [loss.grad_fn]
        while waiting:
            node = waiting.pop()
            names.add(node.name())
            waiting += [n for n, _ in node.next_functions if n is not None]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, any("ScaledDotProduct" in name or "Compiled" in name for name in names)

def generate():
    index, logits = torch.zeros(1, 1, dtype=torch.long), []
    with torch.no_grad():
        for _ in range(40):
            last = model(index)[0][:, -1]
            logits.append(last.sum().item())
            index = torch.cat([index, last.argmax(-1, keepdim=True)], 1)
    return logits

def main():
    losses, fast = train(5)
    model.eval()
    logits = generate()
    model.train()
    losses += train(3, batch=3)[0]
    for block in model.blocks:
        block.attention.mask.fill_(1)
    losses += train(3)[0]
    for block in model.blocks:
        block.attention.mask = torch.ones(1, 1, 64, 64).tril(2)
    losses += train(3)[0]
    late = copy.deepcopy(model)
    with torch.no_grad():
        for weight in late.parameters():
            weight.zero_()
    torch.save(model, "model.pt")
    print(json.dumps({
        "losses": losses, "logits": logits, "fast": fast, "random": torch.rand(2).tolist(),
        "keys": list(model.state_dict()), "zeroed": late(torch.zeros(1, 8).long())[0].sum().item(),
        "attributes": sorted({name for module in model.modules() for name in vars(module)}
                             - {"_compiled_call_impl"}),
        "ema": ema(torch.zeros(1, 8).long())[0].sum().item(),
    }))

if __name__ == "__main__":
    main()
"""
LOADS = """
import sys, torch, train
model = torch.load("model.pt", weights_only=False)
model(torch.zeros(1, 8).long())
assert not [m for m in sys.modules if m.startswith("gpurun")]
"""


HOOKED = """
import json
import torch
from char_gpt import CharGPT

torch.manual_seed(0)
torch.set_num_threads(1)
model = CharGPT(20, 32, 2, 1, 64)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
inner = next(model.blocks[0].attention.children())
calls, losses = [], []

def doubles(module, inputs, output):
    calls.append(len(losses))
    return 2 * output

for step in range(9):
    if step == 4:
        hook = inner.register_forward_hook(doubles)
    if step == 7:
        hook.remove()
    x = torch.randint(0, 20, (4, 32))
    loss = model(x, (x + 1) % 20)[1]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps({"calls": calls, "losses": losses}))
"""


def test_a_hook_that_comes_later_inside_a_replaced_attention_still_runs(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    example = (REPOSITORY / "examples" / "char_gpt.py").read_text()
    (tmp_path / "char_gpt.py").write_text(example)
    run, alone = run_under(gpurun, tmp_path, HOOKED, {"attention": "sdpa"}), bare(tmp_path, HOOKED)
    assert run.outcomes("attention") == ["applied"]
    assert run.printed["calls"] == alone["calls"] == [4, 5, 6]
    assert run.printed["losses"] == pytest.approx(alone["losses"], rel=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"attention": "sdpa"},
        pytest.param({"attention": "sdpa", "compile": "default"}, marks=pytest.mark.slow),
    ],
    ids=["alone", "compiled"],
)
def test_training_generating_and_saving_are_as_without_it(
    tmp_path: Path, gpurun: Gpurun, settings: dict[str, Any]
) -> None:
    example = (REPOSITORY / "examples" / "char_gpt.py").read_text()
    (tmp_path / "char_gpt.py").write_text(example)
    (tmp_path / "train.py").write_text(LIFE)
    command = [sys.executable, "train.py"]
    bare = json.loads(subprocess.check_output(command, cwd=tmp_path))
    run = run_under(gpurun, tmp_path, LIFE, settings)
    tuned = run.printed
    assert (bare["fast"], tuned["fast"]) == (False, True)
    for name in ("losses", "logits", "random", "zeroed", "ema"):
        assert tuned[name] == pytest.approx(bare[name], rel=1e-3, abs=1e-4), name
    assert (tuned["keys"], tuned["attributes"]) == (bare["keys"], bare["attributes"])
    assert set(run.outcomes("attention")) == {"applied"}
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", LOADS], cwd=tmp_path, env=env, check=True)


def _own_lines(trace: bytes) -> list[bytes]:
    """The script's own places in a traceback, and the error."""
    lines = trace.splitlines()
    return [x for x in lines if b"train.py" in x] + lines[-1:]


RAISES = """
import math, torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.limit = 6
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.mT / math.sqrt(8)).softmax(-1)
        if x.shape[1] > self.limit:
            raise ValueError("too long")
        return weights @ v

model = nn.Sequential(Attention(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(8):
    model(torch.randn(2, step, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_an_error_inside_of_a_captured_module_is_told_as_python_tells_it(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    (tmp_path / "train.py").write_text(RAISES)
    (tmp_path / "settings.json").write_text('{"settings": {"attention": "sdpa"}}')
    bare = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True)
    tuned = gpurun("--quiet", "--settings", "settings.json", "--json", "run.json", "train.py")
    assert tuned.returncode == bare.returncode == 1
    told = without_verdict(tuned.stderr)
    assert _own_lines(told) == _own_lines(bare.stderr)
    assert not any(word in told for word in (b"gpurun/knobs", b"gpurun/runtime", b"_dynamo"))
    knobs = json.loads((tmp_path / "run.json").read_text())["knobs"]
    assert "Attention: no mask" in json.dumps(knobs)


ONE_KEY = """
import math, torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT / math.sqrt(8)).softmax(-1) @ v

torch.manual_seed(0)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(type(f"A{i}", (Attention,), {})() for i in range(40))
    def forward(self, x):
        return sum(layer(x) for layer in self.layers)

model = Model()
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for step in range(3):
    model(torch.randn(2, 1, 8)).sum().backward()
    optimizer.step()
print("{}")
"""


def test_a_first_call_with_one_key_does_not_decide_by_the_rounding_of_nothing(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    # the scores of one key get no gradient: what a kernel computes for them is rounding alone
    run = run_under(gpurun, tmp_path, ONE_KEY, {"attention": "sdpa"})
    assert set(run.outcomes("attention")) == {"applied"}


TRACED = """
import json, torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT / 3).softmax(-1) @ v

model = nn.Sequential(Attention(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(2, 5, 8)
for step in range(3):
    model(x).sum().backward()
    optimizer.step()
traced = torch.jit.trace(model[0], x)
parameters = dict(model.named_parameters())
function = lambda p: torch.func.functional_call(model, p, (x,)).sum()
slopes = torch.func.grad(function)(parameters)
print(json.dumps([bool(torch.allclose(traced(x), model[0](x), atol=1e-5)), len(slopes)]))
"""


def test_a_model_that_is_traced_or_transformed_runs_its_own_code(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    run = run_under(gpurun, tmp_path, TRACED, {"attention": "sdpa"})
    assert run.printed == [True, 4]
    assert run.outcomes("attention") == ["applied"]


CHECKPOINTED = """
import json, torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.mT / 3).softmax(-1)
        FAIL
        return weights @ v

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(2))
    def forward(self, x):
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return x

torch.manual_seed(0)
model, losses = Net(), []
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    loss = sum(model(torch.randn(2, 5, 8)).pow(2).mean() for _ in range(2))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps(losses))
"""


@pytest.mark.parametrize(
    ("fail", "outcome"),
    [("", "applied"), ("if torch.compiler.is_compiling(): raise ValueError", "skipped")],
)
def test_under_gradient_checkpointing_a_step_runs_one_code(
    tmp_path: Path, gpurun: Gpurun, fail: str, outcome: str
) -> None:
    script = CHECKPOINTED.replace("FAIL", fail)
    bare = run_under(gpurun, tmp_path, script, {})
    run = run_under(gpurun, tmp_path, script, {"attention": "sdpa"})
    assert run.printed == pytest.approx(bare.printed, rel=1e-5)
    assert run.outcomes("attention") == [outcome]


NONE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
    def forward(self, x):
        return (self.body(x) @ x.mT).softmax(-1)

COMPILE
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    net(torch.randn(2, 3, 4)).std().backward()
    optimizer.step()
print("[]")
"""


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("", "no attention written by hand was seen"),
        ("torch.compile(lambda x: x)", "the script compiles by itself"),
    ],
)
def test_where_there_is_none_or_the_script_compiles_it_says_so(
    tmp_path: Path, gpurun: Gpurun, choice: str, reason: str
) -> None:
    run = run_under(gpurun, tmp_path, NONE.replace("COMPILE", choice), {"attention": "sdpa"})
    assert run.knobs == [("attention", "skipped", reason)]


INFERRING = """
import json, math, torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
    def forward(self, x):
        q, k, v = self.qkv(x).split(16, 2)
        return torch.softmax(q @ k.transpose(1, 2) / math.sqrt(16), dim=-1) @ v

model = nn.Sequential(Attention(), Attention()).eval()
with torch.no_grad():
    for _ in range(12):
        model(torch.randn(4, 8, 16))
print(json.dumps(None))
"""


def test_the_backward_pass_of_its_own_check_is_no_step_of_the_script(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    run = run_under(gpurun, tmp_path, INFERRING, {"attention": "sdpa"})
    assert run.outcomes("attention") == ["applied"]
    (record,) = tmp_path.glob("run-*")
    assert {e["clock"] for e in events(record, "steps")} == {"forward"}
