"""The worked example of a user's own knob: a fused RMS norm that gives way where it must."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from gpurun import knobs
from gpurun.knobs.api import Skip
from tests.conftest import REPOSITORY
from tests.integration.knob_runs import KnobRun, run_under
from tests.unit.knob_facts import ROOT, facts, gpu_facts

KNOB = REPOSITORY / "examples" / "knobs" / "fused_rms_norm.py"
BY_HAND = """
class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-6
    def forward(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * self.weight
"""
OTHERS = {
    "one more than the weight": BY_HAND.replace("ones", "zeros").replace(
        "x * self.weight", "x * (1 + self.weight)"
    ),
    "a bias, zero at first": BY_HAND.replace(
        "        self.weight",
        "        self.bias = nn.Parameter(torch.zeros(width))\n        self.weight",
    ).replace("x * self.weight", "x * self.weight + self.bias"),
    "no gradient through the scale": BY_HAND.replace("self.eps)\n", "self.eps).detach()\n"),
}
TRAIN = """
import copy, json
import torch
from torch import nn
CLASS
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = nn.Linear(16, 32), NORM(32)
        self.blocks = nn.Sequential(nn.Linear(32, 32), NORM(32), nn.Dropout(0.1), nn.Linear(32, 4))
    def forward(self, x):
        return self.blocks(self.norm(self.up(x)))

def main():
    torch.manual_seed(0)
    model = Net()
    COMPILE
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(10):
        x = torch.randn(8, 5, 16)
        out = model(x)
        loss = nn.functional.cross_entropy(out.flatten(0, 1), x.flatten(0, 1).argmax(1) % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    copied = copy.deepcopy(model).eval()
    with torch.no_grad():
        for weight in copied.parameters():
            weight.zero_()
        zeroed = copied(torch.randn(2, 16)).abs().sum().item()
    torch.save(model, "model.pt")
    functions, seen = [out.grad_fn], set()
    while functions:
        function = functions.pop()
        if function is not None and function not in seen:
            seen.add(function)
            functions += [f for f, _ in function.next_functions]
    print(json.dumps({
        "losses": losses,
        "keys": list(model.state_dict()),
        "attributes": sorted(vars(model.norm)),
        "zeroed": zeroed,
        "draw": torch.rand(1).item(),
        "fused": sum("RmsNorm" in type(f).__name__ for f in seen),
    }))

if __name__ == "__main__":
    main()
"""

Train = Callable[..., KnobRun]


@pytest.fixture
def train(tmp_path: Path, gpurun: Callable[..., Any]) -> Train:
    """Train a net whose norms are of the class `norm`, under the knob or without it."""
    (tmp_path / "gpurun.toml").write_text(f'knobs = ["{KNOB}"]\n')

    def run(
        settings: dict[str, Any], norm: str = BY_HAND, name: str = "RMSNorm", compile: str = ""
    ) -> KnobRun:
        script = TRAIN.replace("CLASS", norm).replace("NORM", name).replace("COMPILE", compile)
        return run_under(gpurun, tmp_path, script, settings)

    return run


@pytest.fixture
def norms() -> Iterator[ModuleType]:
    """The module that computes the norm, imported as the knob imports it."""
    before = set(sys.modules)
    knobs.find("fused_rms_norm", [str(KNOB)])
    yield importlib.import_module(f"{knobs.USER_PACKAGE}.kernels.rms_norm")
    for name in [n for n in set(sys.modules) - before if n.startswith(knobs.USER_PACKAGE)]:
        del sys.modules[name]


@pytest.mark.parametrize(("norm", "name"), [(BY_HAND, "RMSNorm"), ("", "nn.RMSNorm")])
def test_the_fused_norm_trains_alike_and_leaves_the_script_as_it_was(
    train: Train, tmp_path: Path, norm: str, name: str
) -> None:
    bare = train({}, norm, name).printed
    run = train({"fused_rms_norm": True}, norm, name)
    assert run.outcomes("fused_rms_norm") == ["applied"]
    assert (run.printed["fused"], bare["fused"]) == (2, 0)
    assert run.printed["losses"] == pytest.approx(bare["losses"], rel=1e-4)
    for same in ("keys", "attributes", "zeroed", "draw"):
        assert run.printed[same] == bare[same], same
    load = "import torch, train, __main__; __main__.Net = train.Net\n"
    load += "__main__.RMSNorm = getattr(train, 'RMSNorm', None)\n"
    load += "torch.load('model.pt', weights_only=False)(torch.ones(1, 16))"
    subprocess.run([sys.executable, "-c", load], cwd=tmp_path, check=True)


@pytest.mark.parametrize("other", OTHERS)
def test_a_class_that_computes_something_else_is_left_alone(train: Train, other: str) -> None:
    bare = train({}, OTHERS[other]).printed
    run = train({"fused_rms_norm": True}, OTHERS[other])
    assert run.outcomes("fused_rms_norm") == ["skipped"]
    assert run.printed == bare


def test_it_stands_aside_in_a_compiled_model_and_says_so(train: Train) -> None:
    run = train({"fused_rms_norm": True}, compile='model.compile(backend="eager")')
    assert run.outcomes("fused_rms_norm") == ["skipped"]
    assert run.printed["fused"] == 0


def test_an_error_of_the_script_shows_no_line_of_the_knob(
    tmp_path: Path, gpurun: Callable[..., Any]
) -> None:
    (tmp_path / "gpurun.toml").write_text(f'knobs = ["{KNOB}"]\n')
    (tmp_path / "settings.json").write_text('{"settings": {"fused_rms_norm": true}}')
    broken = BY_HAND.replace(
        "    def forward(self, x):", "    def forward(self, x):\n        x.nope"
    )
    script = TRAIN.replace("CLASS", broken).replace("NORM", "RMSNorm").replace("COMPILE", "")
    (tmp_path / "train.py").write_text(script)
    done = gpurun("--settings", "settings.json", "train.py")
    assert done.returncode == 1
    assert b"AttributeError" in done.stderr
    assert b"fused_rms_norm.py" not in done.stderr


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_closed_form_is_the_spelled_out_one(norms: ModuleType, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, slope = torch.randn(2, 6, 5, 40, dtype=dtype).unbind()
    weight = torch.randn(40)
    found = []
    for compute in (norms.rms_norm, norms.spelled_out):
        leaves = (x.clone().requires_grad_(), weight.clone().requires_grad_())
        y = compute(*leaves, 1e-5, dtype)
        found.append((y, *torch.autograd.grad(y, leaves, slope)))
    near = {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 0.02, "atol": 0.05}
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, **near)


def test_its_gradients_are_right_to_the_second_order(norms: ModuleType) -> None:
    torch.manual_seed(0)
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 8), 8)]

    def compute(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return norms.rms_norm(x, weight, 1e-5, torch.float64)

    assert torch.autograd.gradcheck(compute, leaves)
    assert torch.autograd.gradgradcheck(compute, leaves)


def test_it_is_proposed_where_there_is_such_a_norm_and_triton_for_a_gpu(
    monkeypatch: pytest.MonkeyPatch, norms: ModuleType
) -> None:
    from dataclasses import replace

    knob = knobs.find("fused_rms_norm", [str(KNOB)])
    llama = (replace(ROOT, module_types={"LlamaRMSNorm": 9, "Linear": 8}),)
    assert knob.candidates(facts(roots=llama)) == [True]
    assert knob.candidates(facts()) == Skip("the model has no RMS norm")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert knob.candidates(gpu_facts(roots=llama)) == Skip("Triton is not installed")


def test_naming_the_whole_folder_finds_it_too_and_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom gpurun.knobs import find\n"
        f"find('fused_rms_norm', [{str(KNOB.parent)!r}])\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)
