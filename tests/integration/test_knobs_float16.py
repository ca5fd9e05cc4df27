"""float16 with a loss scale that the script does not see: an overflow costs a step, no more."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.integration import knob_runs
from tests.integration.knob_runs import KnobRun, run_under
from tests.once import once

TRAIN = """
import copy, json
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
seen = set()
model[0].register_forward_hook(lambda module, args, out: seen.add(str(out.dtype)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
ACCUMULATE, HUGE = 1, None
losses, norms, gradients, moved, rates = [], [], [], [], []
SETUP
for step in range(12):
    optimizer.zero_grad()
    for part in range(ACCUMULATE):
        x = torch.randn(32, 16)
        if INPUT_GRADIENT: x.requires_grad_()
        loss = torch.nn.functional.cross_entropy(model(x), x.argmax(1) % 4) / ACCUMULATE
        if step == HUGE and part == 0: loss = loss * 1e30
        BACKWARD
        losses.append(loss.item())
        if x.grad is not None: gradients.append(x.grad.norm().item())
    norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
    CLIP
    before = copy.deepcopy(model.state_dict())
    steps = copy.deepcopy(optimizer.state_dict()["state"])
    optimizer.step()
    schedule.step()
    rates.append(schedule.get_last_lr()[0])
    moved.append(any(not torch.equal(a, b)
                     for a, b in zip(before.values(), model.state_dict().values())))
    gradients.append(model[0].weight.grad.norm().item())
state = optimizer.state_dict()
torch.save(optimizer, "optimizer.pt")
print(json.dumps({
    "losses": losses, "norms": norms, "moved": moved, "seen": sorted(seen), "rates": rates,
    "gradients": gradients,
    "finite": all(bool(p.isfinite().all()) for p in model.parameters()),
    "keys": [list(model.state_dict()), sorted(state), sorted(state["param_groups"][0])],
    "pickled": sorted(vars(torch.load("optimizer.pt", weights_only=False))),
    "steps": state["state"][0]["step"].item(),
}))
"""

Train = Callable[..., KnobRun]


def script(**parts: str) -> str:
    """The script with its parts filled in; what is not given does nothing."""
    usual = {
        "SETUP": "", "BACKWARD": "loss.backward()", "CLIP": "", "INPUT_GRADIENT": "False",
        "ACCUMULATE, HUGE = 1, None": "ACCUMULATE, HUGE = 1, None",
    }  # fmt: skip
    text = TRAIN
    for name, code in {**usual, **parts}.items():
        text = text.replace(name, code)
    return text


@pytest.fixture
def train(tmp_path: Path, gpurun: Gpurun) -> Train:
    """Train in float16."""

    def run(**parts: str) -> KnobRun:
        return run_under(gpurun, tmp_path, script(**parts), FP16)

    return run


def bare(folder: Path, **parts: str) -> Any:
    """What the script prints under plain python."""
    return knob_runs.bare(folder, script(**parts))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """That of the script as it is."""
    return once(tmp_path_factory, "bare_float16", bare)


FP16 = {"autocast": "fp16"}
ACCUMULATE = {"ACCUMULATE, HUGE = 1, None": "ACCUMULATE, HUGE = 3, None"}


@pytest.mark.parametrize(
    "parts",
    [{}, ACCUMULATE, {"INPUT_GRADIENT": "True"}],
    ids=["plain", "accumulated", "gradients of inputs"],
)
def test_the_script_trains_as_in_float32_and_sees_true_gradients(
    train: Train, tmp_path: Path, parts: dict[str, str]
) -> None:
    own, run = bare(tmp_path, **parts), train(**parts)
    assert run.knobs == [("autocast", "applied", "float16 on cpu")]
    assert run.printed["seen"] == ["torch.float16"]
    for name in ("losses", "norms", "gradients"):
        assert run.printed[name] == pytest.approx(own[name], rel=0.02, abs=1e-3), name
    for name in ("moved", "keys", "pickled", "steps", "rates"):
        assert run.printed[name] == own[name], name


@pytest.mark.parametrize(
    ("accumulate", "clip"),
    [(3, ""), (1, "torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)")],
    ids=["accumulated", "clipped to finite values"],
)
def test_an_overflow_costs_a_step_and_no_parameter(
    train: Train, accumulate: int, clip: str
) -> None:
    planted = {"ACCUMULATE, HUGE = 1, None": f"ACCUMULATE, HUGE = {accumulate}, 4", "CLIP": clip}
    run = train(**planted).printed
    assert [step for step, moved in enumerate(run["moved"]) if not moved] == [4]
    assert run["finite"]
    assert math.isfinite(run["losses"][-1])
    assert run["steps"] == 11, "the optimizer's own counter knows of no step either"
    assert run["rates"][4] == 0.005, "the schedule goes on, as it does under GradScaler"


def test_many_overflows_halve_the_scale_until_it_fits(train: Train, plain: Any) -> None:
    run = train(BACKWARD="(loss * 1e4).backward()").printed
    late = run["moved"].index(True)
    assert 0 < late < 11
    assert all(run["moved"][late:])
    assert run["norms"][late] == pytest.approx(1e4 * plain["norms"][0], rel=0.5)


@pytest.mark.parametrize(
    "parts",
    [
        {"SETUP": "scaler = torch.amp.GradScaler('cpu', enabled=False)"},
        {"SETUP": "model[0].weight.register_hook(lambda g: g.clamp(-1, 1))"},
        {"SETUP": "model[2].register_full_backward_hook(lambda m, i, o: None)"},
        {"BACKWARD": "loss.retain_grad(); loss.backward(); assert loss.grad == 1"},
    ],
    ids=["own scaler", "hook of a parameter", "hook of a module", "gradient inside"],
)
def test_who_handles_gradients_inside_backward_keeps_float32(
    train: Train, plain: Any, parts: dict[str, str]
) -> None:
    run = train(**parts)
    assert run.outcomes("autocast")[-1] in ("skipped", "revoked")
    for name in ("losses", "norms"):
        assert run.printed[name] == pytest.approx(plain[name], rel=0.02), name
    assert run.printed["moved"] == plain["moved"]


OWN = """
import json
import torch

class OwnStep(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.sub_(0.1 * p.grad)

dtypes = []

def train(optimizer_of, closure=False):
    model = torch.nn.Linear(4, 4)
    model.register_forward_hook(lambda module, args, out: dtypes.append(str(out.dtype)))
    optimizer = optimizer_of(model.parameters(), lr=0.1)

    def evaluate():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        if closure:
            optimizer.step(evaluate)
        else:
            evaluate()
            optimizer.step()

WHICH
print(json.dumps(dtypes))
"""


def test_an_optimizer_with_a_step_of_its_own_keeps_float32(tmp_path: Path, gpurun: Gpurun) -> None:
    run = run_under(gpurun, tmp_path, OWN.replace("WHICH", "train(OwnStep)"), FP16)
    assert set(run.printed) == {"torch.float32"}
    assert run.outcomes("autocast") == ["skipped"]


def test_a_closure_ends_float16(tmp_path: Path, gpurun: Gpurun) -> None:
    code = "train(torch.optim.LBFGS, closure=True)"
    run = run_under(gpurun, tmp_path, OWN.replace("WHICH", code), FP16)
    assert run.printed[-1] == "torch.float32"
    assert run.outcomes("autocast")[-1] == "revoked"


RAISED = """
import json, traceback
import torch

class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("refused")

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
frames, gradients = [], []
for refuses in (False, True, False):
    out = model(torch.ones(2, 4))
    try:
        (Refuses.apply(out) if refuses else out).sum().backward()
    except ValueError as error:
        frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    gradients.append(model.bias.grad.tolist())
print(json.dumps([[x for x in frames if "gpurun/knobs" in x or "gpurun/runtime" in x], gradients]))
"""


def test_a_pass_that_raises_leaves_true_gradients_and_a_clean_traceback(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    run = run_under(gpurun, tmp_path, RAISED, FP16)
    assert run.printed == [[], [[2.0] * 4, [2.0] * 4, [4.0] * 4]]
