"""What the script does by itself is noticed in all its spellings, and without a trace of us."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpurun.records.spec import RunSpec, Setting, StopRule, TrialSpec
from tests.conftest import Gpurun
from tests.forked import run_recorded
from tests.run_events import events, run_in

pytestmark = pytest.mark.forked

SPELLINGS = {
    "with torch.autocast('cpu', torch.bfloat16): pass": "autocast",
    "with torch.cpu.amp.autocast(dtype=torch.bfloat16): pass": "autocast",
    "torch.autocast('cpu', torch.bfloat16)(lambda: None)()": "autocast",
    "torch.cuda.amp.GradScaler()": "grad_scaler",
    "torch.amp.GradScaler('cpu')": "grad_scaler",
    "torch.compile(torch.nn.Linear(1, 1))": "compile",
}


def run(folder: Path, *settings: Setting, **how: Any) -> subprocess.CompletedProcess[bytes]:
    """Run `train.py` of `folder` under the settings; its record is the one run of that folder."""
    run_dir = str(folder / ".gpurun" / "runs" / "1")
    return run_recorded(["train.py"], folder, RunSpec(run_dir, os.getpid(), settings, **how))


def traits(folder: Path) -> list[tuple[str, str]]:
    """Name and detail of each trait in the record of the one run in `folder`."""
    return [(event["trait"], event["detail"]) for event in events(run_in(folder), "trait")]


def test_every_spelling_is_noticed_and_warnings_name_the_script(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    lines = ["import os, torch, warnings", "warnings.simplefilter('always')"]
    for spelling in SPELLINGS:
        lines += ["if os.fork() == 0:", f"    {spelling}", "    os._exit(0)", "os.wait()"]
    (tmp_path / "train.py").write_text("\n".join(lines) + "\n")
    result = gpurun("train.py")
    assert result.returncode == 0, result.stderr.decode()
    assert b"gpurun/runtime" not in result.stderr
    assert sorted(trait for trait, _ in traits(tmp_path)) == sorted(SPELLINGS.values())


LACKS_MEMORY = """
import torch

class Large(torch.nn.Linear):
    def forward(self, x):
        if len(x) > 16:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return super().forward(x)

class Deep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.size = len(x)
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        if ctx.size > 16:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return gradient

def train(kind, size):
    model = kind(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Deep.apply(model(torch.ones(size, 4))).mean().backward()
    optimizer.step()

try:
    train(KIND, 64)
except torch.cuda.OutOfMemoryError:
    train(KIND, 16)
"""


@pytest.mark.parametrize("kind", ["Large", "torch.nn.Linear"])
def test_a_lack_of_memory_that_the_script_catches_is_noticed(tmp_path: Path, kind: str) -> None:
    """In the model's call, and in the backward pass."""
    script = LACKS_MEMORY.replace("KIND", kind)
    (tmp_path / "train.py").write_text(script)
    assert run(tmp_path).returncode == 0
    line = script[: script.index("Deep.apply(")].count("\n") + 1
    assert ("out_of_memory", f"train.py:{line}") in traits(tmp_path)


CHECKPOINT = """
from torch.utils.checkpoint import checkpoint
x = torch.ones(2, requires_grad=True)
checkpoint(lambda v: v * 2, x, use_reentrant=False).sum().backward()
"""
# what `parallel_apply` does on GPUs, at its place
REPLICAS = """
file = os.path.join(os.path.dirname(torch.__file__), "nn", "parallel", "parallel_apply.py")
exec(compile("with torch.autocast('cpu'): pass", file, "exec"))
"""


@pytest.mark.parametrize("script", [CHECKPOINT, REPLICAS])
def test_autocast_that_torch_enters_for_itself_is_not_the_scripts(
    tmp_path: Path, script: str
) -> None:
    (tmp_path / "train.py").write_text("import os, torch\n" + script)
    assert run(tmp_path).returncode == 0
    assert traits(tmp_path) == []


KNOB = """
import contextlib
from gpurun.knobs.api import Effect, Knob

class Casting(Knob):
    name, effect = "casting", Effect.NUMERICS
    def candidates(self, facts):
        return [1]
    def apply(self, value, hooks):
        hooks.around_root_call(lambda: self.context())
    @contextlib.contextmanager
    def context(self):
        import torch
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
            yield
"""

CAST_ROOT = """
import contextlib, torch
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.ones(1, 1))
print(loss.dtype)
loss.backward()
optimizer.step()
"""


def plant(folder: Path, knob: str) -> None:
    """Put the user's knob "casting" into `folder`."""
    (folder / "knobs").mkdir()
    (folder / "knobs" / "casting.py").write_text(knob)


CASTING = Setting("casting", 1)


def test_autocast_of_a_users_own_knob_is_not_the_scripts(tmp_path: Path) -> None:
    plant(tmp_path, KNOB)
    (tmp_path / "train.py").write_text(CAST_ROOT)
    done = run(tmp_path, CASTING, knob_paths=(str(tmp_path / "knobs"),))
    assert done.stdout == b"torch.bfloat16\n", done.stderr.decode()
    assert traits(tmp_path) == []


DECORATED = """
import torch

class Net(torch.nn.Linear):
    @torch.autocast("cpu", torch.bfloat16)
    def forward(self, x):
        return super().forward(x)

if __name__ == "__main__":
    model = MODEL
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
"""
CALLED = DECORATED[: DECORATED.index("model(torch")].count("\n") + 1
OURS_REFUSES = """
from gpurun.knobs import autocast, device_requirements
from gpurun.knobs.api import Effect, Knob

class Casting(Knob):
    name, effect = "casting", Effect.NUMERICS
    def candidates(self, facts):
        return [1]
    def apply(self, value, hooks):
        device_requirements.native_on_cpu = lambda: True  # whatever computes here
        autocast.Autocast().apply("bf16", hooks)
"""


@pytest.mark.parametrize("model", ["Net(1, 1)", "torch.nn.Sequential(Net(1, 1))"])
@pytest.mark.parametrize("knob", [None, OURS_REFUSES])
def test_autocast_that_decorates_a_forward_is_the_scripts(
    tmp_path: Path, model: str, knob: str | None
) -> None:
    (tmp_path / "train.py").write_text(DECORATED.replace("MODEL", model))
    if knob is None:
        done = run(tmp_path)
    else:
        plant(tmp_path, knob)
        done = run(tmp_path, CASTING, knob_paths=(str(tmp_path / "knobs"),))
    assert done.returncode == 0, done.stderr.decode()
    assert traits(tmp_path) == [("autocast", f"train.py:{CALLED}")]
    if knob is not None:
        told = [(e["outcome"], e["detail"]) for e in events(run_in(tmp_path), "knob")]
        assert told[-1] == ("revoked", "the script autocasts itself")


def test_autocast_that_the_script_stacks_is_its_own(tmp_path: Path) -> None:
    stacked = "contextlib.ExitStack().enter_context(torch.autocast('cpu', torch.bfloat16))"
    (tmp_path / "train.py").write_text(f"{CAST_ROOT}\n{stacked}\n")
    assert run(tmp_path).returncode == 0
    line = CAST_ROOT.count("\n") + 2
    assert traits(tmp_path) == [("autocast", f"train.py:{line}")]


LOAD = """
import torch
from torch.utils.data import DataLoader
for batch in DataLoader(torch.ones(4, 1)):
    pass
"""
INDENTED = "def main():" + LOAD.replace("\n", "\n    ") + "\n"


@pytest.mark.parametrize(
    ("script", "words", "expected"),
    [
        (LOAD, ["train.py"], [("no_guard", "train.py")]),
        (LOAD, ["-m", "train"], [("no_guard", "train.py")]),
        (INDENTED + "main()\n", ["train.py"], [("no_guard", "train.py")]),
        (INDENTED + "if '__main__' == __name__:\n    main()\n", ["train.py"], []),
        (INDENTED + "if __name__ != '__main__':\n    raise SystemExit\nmain()\n", ["train.py"], []),
        ("", ["train.py"], []),
    ],
)
def test_a_script_that_its_workers_would_run_again_has_no_guard(
    tmp_path: Path,
    gpurun: Gpurun,
    script: str,
    words: list[str],
    expected: list[tuple[str, str]],
) -> None:
    (tmp_path / "train.py").write_text(script)
    assert gpurun(*words).returncode == 0
    assert traits(tmp_path) == expected


def test_a_packages_main_file_is_never_run_again(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "__main__.py").write_text(LOAD)
    assert gpurun("-m", "project").returncode == 0
    assert traits(tmp_path) == []


ELSEWHERE = """
import gc, torch, weakref
from torch.utils.data import DataLoader

class Elsewhere(torch.Tensor):
    looks = 0
    @property
    def is_cuda(self):  # as a tensor on a GPU says
        type(self).looks += 1
        return True

def there(samples):
    return {"x": [torch.stack(samples).as_subclass(Elsewhere)]}

if __name__ == "__main__":
    loader = DataLoader(torch.ones(8, 1), collate_fn=there)
    BODY
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("for epoch in range(2): print(len(list(loader)))", [("cuda_batches", "train.py:16#0")]),
        (
            "print([len(list(x)) for x in (loader, DataLoader(loader.dataset, collate_fn=there))])",
            [
                ("cuda_batches", "train.py:16#0"),
                ("cuda_batches", "train.py:16#0 / train.py:17#0"),
            ],
        ),
        (  # nothing trains: the loader may feed an inference
            "with torch.no_grad(): print(len(list(loader)))",
            [("cuda_batches", "train.py:16#0")],
        ),
        (
            "torch.ones(1, requires_grad=True).sum().backward(); torch.set_grad_enabled(False); "
            "print(len(list(loader)))",
            [],
        ),
    ],
)
def test_the_first_batch_tells_where_a_training_loader_hands_out(
    tmp_path: Path, body: str, expected: list[tuple[str, str]]
) -> None:
    (tmp_path / "train.py").write_text(ELSEWHERE.replace("BODY", body + "; print(Elsewhere.looks)"))
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert traits(tmp_path) == expected
    assert done.stdout.split()[-1] == str(len(expected)).encode()


def test_an_iterator_that_is_left_before_its_first_batch_goes_at_once(tmp_path: Path) -> None:
    body = "gc.disable(); i = weakref.ref(iter(loader)); print(i())"
    (tmp_path / "train.py").write_text(ELSEWHERE.replace("BODY", body))
    assert run(tmp_path).stdout == b"None\n"


APART = ELSEWHERE.replace(
    "    BODY",
    """    here = torch.utils.data.TensorDataset(torch.ones(8, 1))
    list(loader)
    print(DataLoader(here).num_workers)
    print([(x.num_workers, len(list(x))) for _ in range(2) for x in [
        DataLoader(torch.ones(8, 1), collate_fn=there)]])""",
)


def test_batches_on_the_gpu_speak_for_their_own_loader_only(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(APART)
    training = ("train.py:19#0", "train.py:21#1")
    done = run(tmp_path, Setting("loader_workers", 2), training_loaders=training)
    assert done.stdout == b"2\n[(0, 8), (0, 8)]\n", done.stderr.decode()


ATTENTION = """
import torch
from torch import nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.dropout = nn.Linear(8, 24), nn.Dropout(0.1)
        self.gate = nn.Linear(8, 8)
    def forward(self, x):
        x = x + (self.gate(x).softmax(-1) @ x.mT) @ x
        q, k, v = self.qkv(x).chunk(3, -1)
        return ATTEND

net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    net(torch.randn(2, 5, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("attend", "seen"),
    [
        ("self.dropout((q @ k.mT / 3).softmax(-1)) @ v", ["manual_attention"]),
        ("torch.einsum('bij,bjd->bid', torch.einsum('bid,bjd->bij', q, k).softmax(2), v)",
         ["manual_attention"]),
        ("F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)", []),
        ("(q @ k.mT) @ v", []),
    ],
)  # fmt: skip
def test_attention_written_by_hand_is_noticed_in_a_trial(
    tmp_path: Path, attend: str, seen: list[str]
) -> None:
    (tmp_path / "train.py").write_text(ATTENTION.replace("ATTEND", attend))
    stop = StopRule(min_steps=9, min_seconds=9, max_steps=9, warmup_steps=0, audit_steps=0)
    assert run(tmp_path, trial=TrialSpec(stop)).returncode == 0
    assert [trait for trait, _ in traits(tmp_path) if trait != "no_guard"] == seen


TWICE = """
import torch
x = torch.ones(2, 1, requires_grad=True)
net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
y = net(x).pow(3).sum()
graph = True
ASKS
optimizer.step()
"""


@pytest.mark.parametrize(
    ("asks", "seen"),
    [
        ("y.backward(create_graph=graph)", ["double_backward"]),
        ("torch.autograd.backward([y], None, None, graph)", ["double_backward"]),
        ("torch.autograd.grad(y, x, create_graph=graph)", ["double_backward"]),
        ("torch.autograd.grad(y, x, None, True, graph)", ["double_backward"]),
        ("torch.autograd.functional.jacobian(net, x, create_graph=graph)", ["double_backward"]),
        ("y.backward(retain_graph=graph)", []),
    ],
)
def test_gradients_that_can_be_differentiated_are_noticed(
    tmp_path: Path, asks: str, seen: list[str]
) -> None:
    (tmp_path / "train.py").write_text(TWICE.replace("ASKS", asks))
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert traits(tmp_path) == [(trait, "train.py:8") for trait in seen]


KEEPS = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.follows = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2).requires_grad_(False)
        self.normalize = torch.nn.BatchNorm1d(4)
    def forward(self, x):
        LEAVES
        return self.last(self.normalize(x))

net = Net()
optimizer = torch.optim.SGD(net.last.parameters(), lr=0.1)
for step in range(3):
    net(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("leaves", "seen"),
    [
        ("self.follows.weight.data = self.last.weight.data * 0.5", [("keeps_tensors", "weight")]),
        ("self.mask = torch.ones(4)", [("keeps_tensors", "mask")]),
        ("self.follows.weight.copy_(self.last.weight.detach())", []),
    ],
)
def test_a_trial_sees_what_the_first_forward_pass_leaves_in_the_model(
    tmp_path: Path, leaves: str, seen: list[tuple[str, str]]
) -> None:
    (tmp_path / "train.py").write_text(KEEPS.replace("LEAVES", leaves))
    stop = StopRule(min_steps=9, min_seconds=9, max_steps=9, warmup_steps=0, audit_steps=0)
    done = run(tmp_path, trial=TrialSpec(stop))
    assert done.returncode == 0, done.stderr.decode()
    assert [one for one in traits(tmp_path) if one[0] != "no_guard"] == seen


def test_a_trial_reads_of_a_double_backward_that_it_does_not_reach(tmp_path: Path) -> None:
    later = "if not graph: y.backward(create_graph = True)"
    (tmp_path / "train.py").write_text(TWICE.replace("ASKS", f"{later}\ny.backward()"))
    stop = StopRule(min_steps=9, min_seconds=9, max_steps=9, warmup_steps=0, audit_steps=0)
    assert run(tmp_path, trial=TrialSpec(stop)).returncode == 0
    assert traits(tmp_path) == [("double_backward", "train.py:8")]
