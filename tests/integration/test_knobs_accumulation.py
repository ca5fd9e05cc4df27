"""Several batches a step: the training of the larger batch, or the script as it is and why."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.integration.knob_runs import KnobRun, bare, run_under

TRAIN = """
import json
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, SequentialLR, StepLR

class Halved(LambdaLR):
    def __init__(self, optimizer):
        super().__init__(optimizer, lambda step: 0.5 ** step)
    def step(self):
        super().step()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))
optimizer = torch.optim.OPTIMIZER
each_batch = StepLR(optimizer, 2, gamma=0.7)
if SEQUENCE:
    each_batch = SequentialLR(
        optimizer, [StepLR(optimizer, 2, 0.7), CosineAnnealingLR(optimizer, 9)], [5]
    )
each_epoch = Halved(optimizer)
scaler = torch.amp.GradScaler("cpu", enabled=False)
x = torch.randn(160, 8)
y = x.argmax(1) % 4
losses, norms, rates = [], [], []
for epoch in range(3):
    for start in range(0, len(x), BATCH):
        BEFORE
        some = slice(start, start + BATCH)
        loss = nn.functional.cross_entropy(model(x[some]), y[some])
        scaler.scale(loss).backward()
        norms.append(clip_grad_norm_(model.parameters(), 0.3).item())
        scaler.step(optimizer)
        scaler.update()
        AFTER
        each_batch.step()
        losses.append(loss.item())
    each_epoch.step()
    rates.append(optimizer.param_groups[0]["lr"])
    model.eval()
    with torch.no_grad():
        model(x)
    model.train()
print(json.dumps({
    "losses": losses, "norms": norms, "rates": rates, "epochs": each_epoch.last_epoch,
    "weights": [p.sum().item() for p in model.parameters()],
    "steps": [s["step"].item() for s in optimizer.state.values() if "step" in s][:1],
}))
"""
SGD = "SGD(model.parameters(), lr=0.2, momentum=0.9)"
ADAMW = "AdamW(model.parameters(), lr=1e-2)"


def script(
    batch: int, optimizer: str = SGD, clear: str = "optimizer.zero_grad()", after: bool = False,
    sequence: bool = False,
) -> str:  # fmt: skip
    text = TRAIN.replace("BATCH", str(batch)).replace("OPTIMIZER", optimizer)
    text = text.replace("SEQUENCE", str(sequence))
    places = ("AFTER", "BEFORE") if after else ("BEFORE", "AFTER")
    return text.replace(places[0], clear).replace(places[1], "pass")


@pytest.fixture
def train(tmp_path: Path, gpurun: Gpurun) -> Callable[..., KnobRun]:
    """Run a script with so many of its batches a step."""

    def run(text: str, every: Any = 4) -> KnobRun:
        return run_under(gpurun, tmp_path, text, {"accumulation": every})

    return run


@pytest.mark.parametrize(
    ("optimizer", "clear", "after", "sequence"),
    [
        (SGD, "optimizer.zero_grad()", False, False),
        (ADAMW, "optimizer.zero_grad(set_to_none=False)", True, False),
        (SGD, "model.zero_grad()", True, True),
    ],
)
def test_the_curve_is_that_of_the_larger_batch(
    train: Any, tmp_path: Path, optimizer: str, clear: str, after: bool, sequence: bool
) -> None:
    run = train(script(8, optimizer, clear, after, sequence))
    large = bare(tmp_path, script(32, optimizer, clear, after, sequence))
    small = run.printed
    assert run.knobs == [("accumulation", "applied", "4 batches a step")]
    means = [statistics.mean(small["losses"][i : i + 4]) for i in range(0, 60, 4)]
    assert means == pytest.approx(large["losses"], rel=1e-5)
    assert small["norms"][3::4] == pytest.approx(large["norms"], rel=1e-5)
    for figures in ("weights", "rates", "epochs", "steps"):
        assert small[figures] == pytest.approx(large[figures], rel=1e-4), figures


def test_a_schedule_of_epochs_goes_on_in_the_middle_of_a_step(train: Any) -> None:
    assert train(script(8), every=7).printed["epochs"] == 3


REFUSED = """
import json
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", enabled=SCALED)
OTHER
losses = []
for step in range(8):
    x = torch.randn(8, 4, requires_grad=True)
    loss = model(x).square().mean()
    BACKWARD
    CHANGE
    STEP
    CLEAR
    losses.append(loss.item())
print(json.dumps(losses))
"""
ASIDE: dict[str, dict[str, str]] = {
    "several optimizers": {"OTHER": "other = torch.optim.SGD([torch.ones(1)], lr=0.1)"},
    "the script scales its gradients itself": {"SCALED": "True"},
    "its step is given a closure": {
        "BACKWARD": "pass",
        "STEP": "optimizer.step(lambda: loss.backward())",
    },
}
FROM_THE_SECOND_BATCH_ON: dict[str, dict[str, str]] = {
    "the script changes or clears gradients itself": {
        "CLEAR": "for p in model.parameters(): p.grad = None"
    },
    "the script changes or clears gradients itself ": {
        "CHANGE": "for p in model.parameters(): p.grad.clamp_(-0.1, 0.1)"
    },
    "the script discards gradients before its step": {
        "CHANGE": "optimizer.zero_grad(); model(x + x.grad.sign()).square().mean().backward()"
    },
}
DEFAULTS = {
    "OTHER": "", "BACKWARD": "scaler.scale(loss).backward()", "SCALED": "False", "CHANGE": "pass",
    "STEP": "scaler.step(optimizer); scaler.update()", "CLEAR": "optimizer.zero_grad()",
}  # fmt: skip


def awkward(changes: dict[str, str]) -> str:
    text = REFUSED
    for name, code in {**DEFAULTS, **changes}.items():
        text = text.replace(name, code)
    return text


@pytest.mark.parametrize("reason", ASIDE)
def test_what_cannot_be_gathered_is_left_alone(train: Any, tmp_path: Path, reason: str) -> None:
    text = awkward(ASIDE[reason])
    run = train(text)
    assert run.knobs == [("accumulation", "skipped", reason)]
    assert run.printed == bare(tmp_path, text)


@pytest.mark.parametrize("reason", FROM_THE_SECOND_BATCH_ON)
def test_a_script_that_handles_its_gradients_goes_on_as_it_is(train: Any, reason: str) -> None:
    run = train(awkward(FROM_THE_SECOND_BATCH_ON[reason]))
    assert run.knobs == [("accumulation", "skipped", reason.strip())]
    assert run.printed[-1] < run.printed[0], "it trains"
