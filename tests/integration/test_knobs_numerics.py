"""Precision, compilation and the optimizer's path: the script sees nothing of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.knobs.device_requirements import native_on_cpu
from tests.integration.knob_runs import KnobRun, run_under
from tests.once import once

NATIVE_BF16 = pytest.mark.skipif(not native_on_cpu(), reason="this processor emulates bfloat16")

TRAIN = """
import copy, io, json, pickle
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU())
        self.head = torch.nn.Linear(64, 4)
        self.seen = []
    def forward(self, x):
        y = self.body(x)
        if not torch.compiler.is_compiling():
            self.seen.append(str(y.dtype))
        return {"logits": self.head(y), "hidden": (y,)}

def in_child(model, queue):
    with torch.no_grad():
        queue.put(model(torch.ones(32, 16))["logits"].sum().item())

def main():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.OPTIMIZER
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    ema = copy.deepcopy(model)
    losses = []
    for step in range(12):
        x = torch.randn(32, 16)
        out = model(x)
        loss = torch.nn.functional.cross_entropy(out["logits"], x.argmax(1) % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step == 5:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    late = copy.deepcopy(model)
    with torch.no_grad():
        for weight in late.parameters():
            weight.zero_()
    torch.save(model, "model.pt")
    torch.save(optimizer, "optimizer.pt")
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    child = torch.multiprocessing.get_context("spawn").Process(target=in_child, args=(model, queue))
    child.start()
    probe = torch.ones(32, 16)
    state = optimizer.state_dict()
    print(json.dumps({
        "losses": losses,
        "dtypes": [str(out["logits"].dtype), str(out["hidden"][0].dtype)],
        "seen": sorted(set(model.seen)),
        "keys": list(model.state_dict()),
        "class": type(model).__name__,
        "attributes": sorted(set(vars(model)) - {"_compiled_call_impl"}),
        "compiled": model._compiled_call_impl is not None,
        "zeroed_copy": late(probe)["logits"].abs().sum().item(),
        "ema_is_its_own": not torch.equal(ema(probe)["logits"], model(probe)["logits"]),
        "child": queue.get(),
        "here": model(probe)["logits"].detach().sum().item(),
        "optimizer": repr(optimizer),
        "groups": state["param_groups"],
        "state": {str(k): {n: str(v.dtype) + str(v.device) if torch.is_tensor(v) else v
                           for n, v in s.items()} for k, s in state["state"].items()},
        "pickled_path": torch.load("optimizer.pt", weights_only=False).param_groups[0]["fused"],
    }))

if __name__ == "__main__":
    main()
"""
ADAMW = "AdamW(model.parameters(), lr=1e-2)"

Train = Callable[..., KnobRun]


@pytest.fixture
def train(tmp_path: Path, gpurun: Callable[..., Any]) -> Train:
    """Train under settings with an optimizer, compiling into a folder of the test's own."""

    def run(settings: dict[str, Any], optimizer: str = ADAMW, script: str = TRAIN) -> KnobRun:
        text = script.replace("OPTIMIZER", optimizer)
        env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
        return run_under(gpurun, tmp_path, text, settings, env=env)

    return run


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the script prints under plain python."""
    return once(tmp_path_factory, "bare_numerics", bare_in)


def bare_in(folder: Path) -> Any:
    """The script under plain python."""
    (folder / "train.py").write_text(TRAIN.replace("OPTIMIZER", ADAMW))
    command = [sys.executable, "train.py"]
    return json.loads(subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout)


def loads_without_gpurun(folder: Path) -> bool:
    """Whether a fresh python without gpurun on its path loads and runs the saved model."""
    code = (
        "import torch, train, __main__\n"
        "__main__.Net = train.Net\n"
        "model = torch.load('model.pt', weights_only=False)\n"
        "model(torch.ones(1, 16))\n"
        "import sys; assert not [m for m in sys.modules if m.startswith('gpurun')]\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, env=env).returncode == 0


def same_training(tuned: Any, bare: Any) -> None:
    assert tuned["losses"] == pytest.approx(bare["losses"], rel=0.02)


def same_to_the_script(tuned: Any, bare: Any) -> None:
    """Everything that a script may look at, apart from figures."""
    for name in ("dtypes", "keys", "class", "attributes", "optimizer", "groups", "state"):
        assert tuned[name] == bare[name], name
    assert tuned["pickled_path"] == bare["pickled_path"]
    assert tuned["zeroed_copy"] == 0, "a copy runs its own weights"
    assert tuned["ema_is_its_own"]
    assert tuned["child"] == pytest.approx(tuned["here"], rel=0.02, abs=0.5)


@NATIVE_BF16
@pytest.mark.slow
def test_autocast_and_fused_leave_the_script_as_it_was(
    train: Train, bare: Any, tmp_path: Path
) -> None:
    run = train({"autocast": "bf16", "fused_optimizer": "fused"})
    same_training(run.printed, bare)
    same_to_the_script(run.printed, bare)
    assert bare["seen"] == ["torch.float32"]
    assert "torch.bfloat16" in run.printed["seen"], "the model did run in bfloat16"
    assert set(run.outcomes("autocast")) == {"applied"}
    assert run.outcomes("fused_optimizer") == ["applied"]
    assert loads_without_gpurun(tmp_path)


@pytest.mark.slow
def test_compiling_in_place_leaves_the_script_as_it_was(
    train: Train, bare: Any, tmp_path: Path
) -> None:
    run = train({"compile": "default"})
    assert run.printed["compiled"], "the model did run compiled"
    same_training(run.printed, bare)
    same_to_the_script(run.printed, bare)
    assert loads_without_gpurun(tmp_path)


PATHS = """
import json
import torch
from torch.optim import adam, sgd

calls = []
for module, name in ((sgd, "_fused_sgd"), (adam, "_fused_adam")):
    def spy(*args, original=getattr(module, name), name=name, **kwargs):
        calls.append(name)
        return original(*args, **kwargs)
    setattr(module, name, spy)

class OwnStep(torch.optim.SGD):
    def step(self, closure=None):
        return None

def path_of(cls, dtype=torch.float32, **options):
    calls.clear()
    weight = torch.nn.Parameter(torch.ones(4, dtype=dtype))
    optimizer = cls([weight], lr=0.1, **options)
    for _ in range(2):
        weight.grad = torch.ones(4, dtype=dtype)
        optimizer.step()
    return [sorted(set(calls)), optimizer.param_groups[0].get("fused")]

print(json.dumps({
    "sgd": path_of(torch.optim.SGD, momentum=0.9),
    "chosen": path_of(torch.optim.AdamW, foreach=False),
    "complex": path_of(torch.optim.Adam, torch.complex64),
    "own step": path_of(OwnStep),
    "no such path": path_of(torch.optim.Rprop),
}))
"""


def test_the_fused_path_is_taken_where_it_can_be_and_does_not_show(train: Train) -> None:
    run = train({"fused_optimizer": "fused"}, script=PATHS)
    assert run.printed == {
        "sgd": [["_fused_sgd"], None],
        "chosen": [[], None],
        "complex": [[], None],
        "own step": [[], None],
        "no such path": [[], None],
    }
    assert [(outcome, detail.split(":")[0]) for _, outcome, detail in run.knobs] == [
        ("applied", "SGD"),
        ("skipped", "AdamW"),
        ("skipped", "Adam"),
        ("skipped", "OwnStep"),
        ("skipped", "Rprop has no fused path"),
    ]


LATE_SPARSE = """
import json
import torch
torch.manual_seed(0)
torch.sparse.check_sparse_tensor_invariants.disable()  # unasked, torch warns of it
table = torch.nn.Embedding(8, 4, sparse=True)
dense = torch.nn.Linear(4, 1)
model = torch.nn.ModuleList([table, dense])
losses = []
for cls in (torch.optim.SGD, torch.optim.Adagrad):
    optimizer = cls(model.parameters(), lr=0.1)
    for step in range(6):
        x = torch.ones(2, 4) if step < 3 else table(torch.tensor([1, 2]))
        optimizer.zero_grad()
        loss = dense(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(json.dumps(losses))
"""


def test_gradients_that_come_late_and_sparse_end_the_fused_path(train: Train) -> None:
    plain = train({}, script=LATE_SPARSE).printed
    run = train({"fused_optimizer": "fused"}, script=LATE_SPARSE)
    assert run.printed == pytest.approx(plain, rel=1e-5)
    assert {(outcome, detail) for _, outcome, detail in run.knobs} == {
        ("applied", "SGD: fused"),
        ("revoked", "SGD: it has sparse gradients"),
        ("applied", "Adagrad: fused"),
        ("revoked", "Adagrad: it has sparse gradients"),
    }


FOREACH = """
import json
import torch
from torch.optim import adam

calls = []
multi = adam._multi_tensor_adam
adam._multi_tensor_adam = lambda *a, **k: (calls.append("foreach"), multi(*a, **k))
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.Adam([weight], lr=0.1)
weight.grad = torch.ones(4)
optimizer.step()
print(json.dumps([calls, optimizer.state_dict()["param_groups"][0]["foreach"]]))
"""


def test_the_foreach_path_does_not_show_either(train: Train) -> None:
    assert train({"fused_optimizer": "foreach"}, script=FOREACH).printed == [["foreach"], None]


OWN = """
import json
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dtypes = []
for enabled in (False, True, False):
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        out = model(torch.ones(2, 4))
    dtypes.append(str(out.dtype))
    out.float().mean().backward()
    optimizer.step()
print(json.dumps(dtypes))
"""


@NATIVE_BF16
def test_the_scripts_own_autocast_wins_even_where_it_is_switched_off(train: Train) -> None:
    run = train({"autocast": "bf16"}, script=OWN)
    assert run.printed == ["torch.float32", "torch.bfloat16", "torch.float32"]
    assert run.outcomes("autocast") == ["skipped"]


WARNS = """
import json, sys, warnings
import torch
with warnings.catch_warnings(record=True) as seen:
    warnings.warn("Attempting to run cuBLAS, but there was no current CUDA context! Attempting to")
    warnings.warn("the script's own")
print(json.dumps([str(w.message)[:20] for w in seen]))
"""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, ["Attempting to run cu", "the script's own"]), ({"tf32": True}, ["the script's own"])],
)
def test_settings_silence_only_the_warning_that_they_cause(
    gpurun: Callable[..., Any], tmp_path: Path, settings: dict[str, Any], expected: list[str]
) -> None:
    assert run_under(gpurun, tmp_path, WARNS, settings).printed == expected
