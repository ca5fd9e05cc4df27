"""Knobs of the device: the training stays the same, and what the script chose itself stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.integration.knob_runs import KnobRun, run_under

pytestmark = pytest.mark.gpu

TRAIN = """
import json
import torch
from torch import nn

CHOICE
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 10),
).cuda()
held = list(model.parameters())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x, y = torch.randn(16, 3, 32, 32).cuda(), torch.arange(16).cuda() % 10
host = torch.empty(2, 10, pin_memory=True)
losses = []
for step in range(20):
    out = model(x)
    loss = nn.functional.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    COPY
    torch.cuda.synchronize()
    losses.append(loss.item())
print(json.dumps({
    "losses": losses,
    "same": all(a is b for a, b in zip(held, model.parameters())),
    "tf32": torch.backends.cuda.matmul.allow_tf32,
    "benchmark": torch.backends.cudnn.benchmark,
    "channels_last": model[0].weight.is_contiguous(memory_format=torch.channels_last),
    "copied": bool((host == out[:2].detach().cpu()).all()),
}))
"""


def train(
    gpurun: Gpurun, folder: Path, settings: dict[str, Any], choice: str = "", copy: str = ""
) -> KnobRun:
    """Train under settings; `choice` stands at the script's top, `copy` in its step."""
    return run_under(
        gpurun, folder, TRAIN.replace("CHOICE", choice).replace("COPY", copy), settings
    )


def test_each_leaves_the_training_as_it_is(tmp_path: Path, gpurun: Gpurun) -> None:
    bare = train(gpurun, tmp_path, {}).printed
    for knob, seen in (
        ("tf32", "tf32"), ("cudnn_benchmark", "benchmark"), ("channels_last", "channels_last"),
    ):  # fmt: skip
        run = train(gpurun, tmp_path, {knob: True})
        assert run.outcomes(knob) == ["applied"]
        assert run.printed[seen]
        assert not bare[seen]
        assert run.printed["same"], "the optimizer's parameters are the model's"
        assert run.printed["losses"] == pytest.approx(bare["losses"], rel=0.02)


@pytest.mark.parametrize(
    ("knob", "choice"),
    [
        ("tf32", "torch.backends.cuda.matmul.allow_tf32 = True"),
        ("tf32", "torch.set_float32_matmul_precision('high')"),
        ("cudnn_benchmark", "torch.backends.cudnn.deterministic = True"),
        ("cudnn_benchmark", "torch.backends.cudnn.benchmark = True"),
    ],
)
def test_the_scripts_own_choice_stands(
    tmp_path: Path, gpurun: Gpurun, knob: str, choice: str
) -> None:
    run = train(gpurun, tmp_path, {knob: True}, choice)
    assert run.outcomes(knob) == ["skipped"]


def test_a_synchronisation_in_the_scripts_own_lines_returns_at_once(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    run = train(gpurun, tmp_path, {"needless_sync": "skip"})
    assert run.outcomes("needless_sync") == ["applied"]
    assert run.printed["losses"] == train(gpurun, tmp_path, {}).printed["losses"]


@pytest.mark.parametrize(
    "copy",
    [
        "host.copy_(out[:2].detach(), non_blocking=True)",
        "host = out[:2].detach().to('cpu', non_blocking=True)",
        "s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())\n"
        "    with torch.cuda.stream(s): host.copy_(out[:2].detach())",
    ],
)
def test_a_script_that_needs_its_synchronisation_keeps_it(
    tmp_path: Path, gpurun: Gpurun, copy: str
) -> None:
    run = train(gpurun, tmp_path, {"needless_sync": "skip"}, copy=copy)
    assert run.outcomes("needless_sync")[-1] in ("skipped", "revoked")
    assert run.printed["copied"]


SEGMENTS = """
import json
import torch

torch.zeros(1, device="cuda")
print(json.dumps(torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]))
"""


def test_the_device_allocator_grows_its_segments(tmp_path: Path, gpurun: Gpurun) -> None:
    assert run_under(gpurun, tmp_path, SEGMENTS, {}).printed is False
    run = run_under(gpurun, tmp_path, SEGMENTS, {"allocator": "expandable_segments"})
    assert run.printed is True
    assert run.outcomes("allocator") == ["applied"]


FLOAT16 = """
import json
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(32, 16, device="cuda")
y = x.argmax(1) % 4
losses, norms, moved = [], [], []
for step in range(12):
    loss = nn.functional.cross_entropy(model(x), y) * (1e30 if step == 4 else 1)
    optimizer.zero_grad()
    loss.backward()
    norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
    before = model[0].weight.detach().clone()
    optimizer.step()
    losses.append(loss.item())
    moved.append(not torch.equal(before, model[0].weight))
print(json.dumps([losses[:4], norms[:4], moved, losses[-1]]))
"""


@pytest.mark.parametrize("other", [{}, {"fused_optimizer": "fused"}, {"compile": "default"}])
def test_float16_passes_over_a_step_that_overflowed(
    tmp_path: Path, gpurun: Gpurun, other: dict[str, Any]
) -> None:
    bare = run_under(gpurun, tmp_path, FLOAT16, {}).printed
    run = run_under(gpurun, tmp_path, FLOAT16, {"autocast": "fp16", **other})
    assert run.outcomes("autocast") == ["applied"]
    losses, norms, moved, last = run.printed
    assert losses == pytest.approx(bare[0], rel=0.02)
    assert norms == pytest.approx(bare[1], rel=0.05)
    assert [step for step, there in enumerate(moved) if not there] == [4]
    assert last < losses[0]


EVALUATE = """
import json
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(32, 4),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.randn(4, 16, 3, 32, 32, device="cuda")
scores = []
for epoch in range(3):
    for x in data:
        loss = nn.functional.cross_entropy(model(x), torch.arange(16, device="cuda") % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        scores.append([model(x).norm().item() for x in data])
    model.train()
print(json.dumps(scores))
"""


@pytest.mark.parametrize("other", [{}, {"autocast": "bf16"}, {"channels_last": True}])
def test_folded_evaluations_give_the_same_figures(
    tmp_path: Path, gpurun: Gpurun, other: dict[str, Any]
) -> None:
    bare = run_under(gpurun, tmp_path, EVALUATE, other).printed
    run = run_under(gpurun, tmp_path, EVALUATE, {"evaluation_fusion": True, **other})
    assert run.outcomes("evaluation_fusion") == ["applied"]
    assert run.printed == [pytest.approx(scores, rel=0.05) for scores in bare]
