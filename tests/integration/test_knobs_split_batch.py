"""A batch in slices: the same training in less memory, or the script as it is and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.integration.knob_runs import KnobRun, bare, run_under

TRAIN = """
import copy, json, resource
from collections import namedtuple
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
Found = namedtuple("Found", "logits per_sample scale note")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(16, WIDTH)
        self.drop = nn.Dropout(DROP)
        self.head = nn.Linear(WIDTH, 4)
        self.scale = nn.Parameter(torch.ones(()))
        self.layer = nn.LayerNorm(WIDTH)
    def forward(self, x, *, options):
        x = self.stem(x) * options["weight"]
        for _ in range(DEPTH):
            x = self.drop(torch.sigmoid(x).tanh())
        found = Found(self.head(self.layer(x)), x.mean(1), self.scale.exp(), "plain")
        return {"found": found, "none": None}

model = Net()
seen = []
model.register_forward_hook(lambda module, args, out: seen.append(args[0].shape[0]))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses, scores = [], []
x = torch.randn(ROWS + 3, 16)
for epoch in range(2):
    for batch in (x[:ROWS], x[ROWS:], x[1 : ROWS - 1]):
        weight = torch.linspace(0.5, 1, batch.shape[0])[:, None]
        out = model(batch, options={"weight": weight})["found"]
        similar = F.normalize(out.logits) @ F.normalize(out.logits).T
        loss = F.cross_entropy(out.logits * out.scale, batch.argmax(1) % 4)
        loss = loss + similar.mean() + out.per_sample.square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        scores.append(model(torch.ones(8, 16), options={"weight": 1})["found"].logits.sum().item())
    model.train()
ema = copy.deepcopy(model)
with torch.no_grad():
    for weight in ema.parameters():
        weight.zero_()
print(json.dumps({
    "losses": losses, "scores": scores, "seen": seen, "note": out.note, "type": type(out).__name__,
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "keys": list(model.state_dict()),
    "zeroed": ema(torch.ones(8, 16), options={"weight": 1})["found"].logits.sum().item(),
}))
"""


def script(rows: int = 64, width: int = 32, depth: int = 2, drop: float = 0.0) -> str:
    text = TRAIN.replace("ROWS", str(rows)).replace("WIDTH", str(width))
    return text.replace("DEPTH", str(depth)).replace("DROP", str(drop))


@pytest.fixture
def train(tmp_path: Path, gpurun: Gpurun) -> Callable[..., KnobRun]:
    """Run a script with its batches in slices."""

    def run(text: str, value: Any = 4, **settings: Any) -> KnobRun:
        return run_under(gpurun, tmp_path, text, {"split_batch": value, **settings})

    return run


def test_the_training_is_the_same_in_slices(train: Any, tmp_path: Path) -> None:
    run, plain = train(script()), bare(tmp_path, script())
    assert run.knobs == [("split_batch", "applied", "Net: 4 slices a batch")]
    for figures in ("losses", "scores"):
        assert run.printed.pop(figures) == pytest.approx(plain.pop(figures), rel=1e-5)
    assert run.printed.pop("peak")
    del plain["peak"]
    assert run.printed == plain


def test_activations_of_one_slice_live_at_a_time(train: Any, tmp_path: Path) -> None:
    large = script(rows=256, width=1 << 13, depth=24, drop=0.1)
    in_slices, whole = train(large, 8).printed["peak"], bare(tmp_path, large)["peak"]
    activations = 256 * (1 << 13) * 24 * 2 * 4 / 1024  # KiB: sigmoid and tanh keep theirs
    assert whole > activations, "the test weighs what it means to"
    assert in_slices < whole - activations / 2


REFUSED = """
import json
import torch
from torch import nn

class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(8, 4)
    def forward(self, x):
        return {"loss": self.line(x).square().mean(), "logits": self.line(x)}

class Centred(Loss):
    def forward(self, x):
        return self.line(x - x.mean(0))

class Contrast(Loss):
    def forward(self, x):
        return self.line(x) @ self.line(x).T

class Counted(Loss):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.mean(0), 0.1)
        return self.line(x - self.mean)

class Fixed(Loss):
    def forward(self, x):
        return self.line(x.view(16, 8))

class Only(Loss):
    def forward(self, x, positions):
        return self.line(x) + positions

class Normed(Loss):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
    def forward(self, x):
        return self.line(self.norm(x))

found = {}
for kind in (Loss, Centred, Contrast, Counted, Fixed, Normed, Only):
    torch.manual_seed(0)
    model = kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    more = (torch.ones(1, 4),) if kind is Only else ()
    for _ in range(3):
        out = model(torch.randn(16, 8), *more)
        loss = out["loss"] if kind is Loss else out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found[kind.__name__] = [loss.item(), torch.rand(()).item(), *model.state_dict().keys()]
print(json.dumps(found))
"""


def test_models_whose_samples_meet_run_as_they_are(train: Any, tmp_path: Path) -> None:
    run, plain = train(REFUSED), bare(tmp_path, REFUSED)
    assert [detail for _, _, detail in run.knobs] == [
        "Loss: it returns a tensor without a row for each sample (a loss?)",
        "Centred: samples of a batch influence each other",
        "Contrast: samples of a batch influence each other",
        "Counted: its forward changes a buffer (mean)",
        "Fixed: it cannot run on 4 rows (RuntimeError)",
        "Normed: BatchNorm1d takes its statistics over the whole batch",
        "Only: 4 slices a batch",
    ]
    assert run.printed["Only"][0] == pytest.approx(plain["Only"][0], rel=1e-5)
    run.printed["Only"][0] = plain["Only"][0]
    assert run.printed == plain
