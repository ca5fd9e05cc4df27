"""Normalisations are folded while the model evaluates: the same figures, and nothing to be seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.integration.knob_runs import KnobRun, bare, run_under

SETTINGS = {"evaluation_fusion": True}
HEAD = """
import copy, json, pickle, pickletools, warnings
import torch
from torch import nn

warnings.simplefilter("ignore")  # tracing compares figures
torch.manual_seed(0)
normalised = []
normalise = torch.batch_norm
def counted(*args):
    if not args[5]:
        normalised.append(1)
    return normalise(*args)
torch.batch_norm = counted

class Block(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.act = nn.ReLU(inplace=True)
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), self.act,
            nn.Conv2d(out, out, 3, 1, 1, groups=2), nn.BatchNorm2d(out))
        self.short = nn.Sequential(
            nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
    def forward(self, x):
        return self.act(self.body(x) + self.short(x))

def evaluate(model, batches, mode=torch.no_grad):
    was, normalised[:] = model.training, []
    model.eval()
    with mode():
        out = [model(x).double().sum().item() for x in batches]
    model.train(was)
    return out, len(normalised)
"""
TRAIN = """
model = nn.Sequential(
    Block(3, 8, 1), Block(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(16, 8), nn.BatchNorm1d(8, affine=False), nn.ReLU(), nn.Linear(8, 4),
)
data = torch.randn(3, 16, 3, 12, 12)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scores, losses = {}, []
for epoch in range(2):
    for x in data:
        loss = nn.functional.cross_entropy(model(x), torch.arange(16) % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    scores[f"epoch {epoch}"] = evaluate(model, data)
with torch.no_grad():
    for p in model.parameters():
        p.mul_(1.05)
scores["written in place"] = evaluate(model, data)
for p in model.parameters():
    p.data.mul_(1.05)
scores["written through .data"] = evaluate(model, data)
model[0].body[1].running_var.add_(1.0)
scores["statistics changed"] = evaluate(model, data)
model.load_state_dict({k: v * 0.9 if v.is_floating_point() else v
                       for k, v in model.state_dict().items()})
scores["loaded"] = evaluate(model, data)
scores["inference mode"] = evaluate(model, data, torch.inference_mode)
def look():
    normalised.clear()
    with torch.no_grad():
        return [model(x).double().sum().item() for x in data], len(normalised)
model.eval()
held, norm = model[0].body[0].weight.data, model[0].body[1]
scores["as loaded"] = look()
for value in model.state_dict().values():
    if value.is_floating_point():
        value.data.mul_(1.1)
scores["written through a state dict"] = look()
norm.running_var.data.add_(1.0)
scores["statistics through .data"] = look()
norm.running_mean.numpy()[:] += 0.5
scores["statistics through numpy"] = look()
held.mul_(1.3)
model.eval()
scores["written to what was held"] = look()
model.train()
copied = copy.deepcopy(model)
for p in copied.parameters():
    p.data.zero_()
scores["copy"] = evaluate(copied, data)
scores["after the copy"] = evaluate(model, data)
looked = []
hook = model[0].body[0].register_forward_hook(lambda m, args, out: looked.append(out.sum().item()))
scores["hooked"] = evaluate(model, data)
hook.remove()
report = {
    "scores": {k: v[0] for k, v in scores.items()}, "norms": {k: v[1] for k, v in scores.items()},
    "losses": losses, "looked": looked, "keys": list(model.state_dict()),
    "attributes": [sorted(vars(m)) for m in model.modules()],
    "pickle": [op.name for op, *_ in pickletools.genops(pickle.dumps(model))],
    "modes": [m.training for m in model.modules()],
    "repr": repr(model), "traced": sorted(torch.jit.trace(model.eval(), data[0]).state_dict()),
}
print(json.dumps(report))
"""


def both(gpurun: Gpurun, folder: Path, script: str) -> tuple[Any, KnobRun]:
    """What the script prints under plain python, and its run with the knob."""
    return bare(folder, script), run_under(gpurun, folder, script, SETTINGS)


def test_evaluation_gives_the_same_figures_without_normalising(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    plain, run = both(gpurun, tmp_path, HEAD + TRAIN)
    assert run.knobs == [
        ("evaluation_fusion", "applied", "7 normalisations of Sequential"),
    ]
    for name, scores in plain["scores"].items():
        assert run.printed["scores"][name] == pytest.approx(scores, rel=1e-3, abs=1e-3), name
    norms = run.printed["norms"]
    folded = {name for name, count in norms.items() if count == 0}
    assert folded >= {
        "epoch 1", "written in place", "written through .data", "statistics changed", "loaded",
        "inference mode", "after the copy", "written through a state dict",
        "statistics through .data", "statistics through numpy", "written to what was held",
    }  # fmt: skip
    assert norms["hooked"] == 3, "only the layer with a hook is left alone"
    assert norms["copy"] == plain["norms"]["copy"] > 0, "a copy is no root of ours"
    assert run.printed["looked"] == pytest.approx(plain["looked"], rel=1e-3)
    assert run.printed["losses"] == plain["losses"], "training is untouched"
    for name in ("keys", "attributes", "pickle", "modes", "repr", "traced"):
        assert run.printed[name] == plain[name], name


READING = """
from gpurun.knobs.applied import folded_sequences

made, fuse = [], folded_sequences.fuse_conv_bn_weights
def counting(*args):
    made.append(1)
    return fuse(*args)
folded_sequences.fuse_conv_bn_weights = counting
model = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.randn(6, 16, 3, 8, 8)
model(data[0]).sum().backward()
optimizer.step()
model.eval()
with torch.no_grad():
    for x in data:
        output = model(x)
        torch.max(output.data, 1)
        output.numpy().sum()
print(json.dumps(len(made)))
"""


def test_a_loop_that_reads_its_outputs_folds_once(tmp_path: Path, gpurun: Gpurun) -> None:
    assert run_under(gpurun, tmp_path, HEAD + READING, SETTINGS).printed == 1


WAYS = """
class Twice(nn.Sequential):
    def forward(self, x):
        y = self[0](x)
        return self[1](y) + y

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 1, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.pair = KIND(self.conv, self.norms[0])
        self.which, self.kept = 0, None
        for norm in self.norms:
            nn.init.uniform_(norm.weight, 1, 2)
    def forward(self, x):
        WAY
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.randn(3, 16, 3, 8, 8)
for x in data:
    model(x).square().mean().backward()
    optimizer.step()
scores = [evaluate(model, data) for _ in range(2)]
model.which = 1
scores.append(evaluate(model, data))
print(json.dumps({"scores": [s[0] for s in scores], "norms": [s[1] for s in scores]}))
"""
OTHERWISE = {
    "read by another": "y = self.conv(x); return self.norms[0](y) + y",
    "read in place": "y = self.conv(x); y.relu_(); return self.norms[0](y)",
    "kept": "y = self.conv(x); self.kept = y; return self.norms[0](y)",
    "two after one": "y = self.conv(x); return self.norms[0](y) + self.norms[1](self.conv(x))",
    "something between": "return self.norms[0](torch.relu(self.conv(x)))",
    "a sequence with a forward of its own": "return self.pair(x)",
}


def ways(way: str, kind: str = "nn.Sequential") -> str:
    """A script whose model calls its layers in this way; `kind`: the class that holds a pair."""
    return HEAD + WAYS.replace("WAY", way, 1).replace("KIND", kind, 1)


@pytest.mark.parametrize("way", OTHERWISE)
def test_what_is_not_a_pair_is_not_folded(tmp_path: Path, gpurun: Gpurun, way: str) -> None:
    plain, run = both(gpurun, tmp_path, ways(OTHERWISE[way], "Twice"))
    assert run.printed["scores"] == [pytest.approx(s, rel=1e-4) for s in plain["scores"]]
    assert run.printed["norms"] == plain["norms"]
    assert run.outcomes("evaluation_fusion") == ["skipped"]


def test_weights_made_and_gradients_taken_inside_the_call_are_right(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    way = (
        "with torch.no_grad(): self.conv.weight.mul_(1.01)\n"
        "        with torch.enable_grad():\n"
        "            slope = torch.autograd.grad(self.pair(x).square().mean(),\n"
        "                                        self.conv.weight)[0] if self.which else 0\n"
        "        return self.pair(x) + (slope.mean() if self.which else 0)"
    )
    plain, run = both(gpurun, tmp_path, ways(way))
    assert run.outcomes("evaluation_fusion") == ["applied"]
    assert run.printed["scores"] == [pytest.approx(s, rel=1e-4) for s in plain["scores"]]
    assert run.printed["norms"] == [1, 0, 3]


def test_another_normalisation_gets_what_the_layer_made(tmp_path: Path, gpurun: Gpurun) -> None:
    way = "self.pair[1] = self.norms[self.which]; return self.pair(x)"
    plain, run = both(gpurun, tmp_path, ways(way))
    assert run.printed["scores"] == [pytest.approx(s, rel=1e-4) for s in plain["scores"]]
    assert run.printed["norms"][1:] == [0, 1], "once, to see that it gives the same figures"


def test_a_model_that_takes_another_way_later_is_right_at_once(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    way = "return self.conv(x) if self.which else self.pair(x)"
    plain, run = both(gpurun, tmp_path, ways(way))
    assert run.outcomes("evaluation_fusion") == ["applied"]
    assert run.printed["scores"] == [pytest.approx(s, rel=1e-4) for s in plain["scores"]]


INFER = """
import threading, traceback
model = nn.Sequential(Block(3, 8, 1), nn.Flatten()).eval()
for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
    nn.init.uniform_(norm.running_var, 0.5, 2)
data = torch.randn(8, 2, 3, 8, 8)
scores, norms = [], []
for _ in range(3):
    out, count = evaluate(model, data)
    scores.append(out)
    norms.append(count)
found = {}
def infer(number):
    with torch.no_grad():
        found[number] = [model(x).double().sum().item() for x in data for _ in range(20)]
threads = [threading.Thread(target=infer, args=(n,)) for n in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
try:
    with torch.no_grad():
        model(torch.randn(2, 5, 8, 8))
except RuntimeError as error:
    frames = [f.filename for f in traceback.extract_tb(error.__traceback__)]
print(json.dumps({"scores": scores, "norms": norms, "threads": [found[n] for n in range(3)],
                  "ours": [f for f in frames if "gpurun/knobs" in f or "gpurun/runtime" in f]}))
"""


def test_a_script_that_only_infers_folds_and_its_threads_agree(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    plain, run = both(gpurun, tmp_path, HEAD + INFER)
    assert run.outcomes("evaluation_fusion") == ["applied"]
    assert run.printed["norms"][-1] == 0
    for name in ("scores", "threads"):
        for mine, theirs in zip(run.printed[name], plain[name], strict=True):
            assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-3), name
    assert run.printed["ours"] == []
