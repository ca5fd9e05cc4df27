"""Forward passes that are not computed again: the same numbers, with half of the forward calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.integration.knob_runs import KnobRun, bare, run_under

TRAIN = """
import functools, json, warnings
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

torch.manual_seed(0)
warnings.filterwarnings("ignore", "None of the inputs have requires_grad")

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(32, 64), nn.Linear(64, 32), nn.Dropout(0.1)
        self.norm = NORM
        self.runs = 0
    def forward(self, x, scale=1.0):
        self.runs += 1
        return x + scale * self.second(self.drop(torch.relu(self.first(self.norm(x)))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.blocks = nn.Linear(16, 32), nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(32, 4)
    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = CALL
        return self.head(x)

model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for step in range(8):
    x = torch.randn(64, 16)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 4)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps({
    "losses": losses, "runs": sum(block.runs for block in model.blocks),
    "weights": sum(p.double().sum().item() for p in model.parameters()),
    "draws": torch.rand(()).item(),
    "statistics": [float(b.sum()) for b in model.buffers()],
}))
"""
WATCHED = 3
"""In so many of the eight steps everything is still computed again."""
TWICE = 2 * 3 * 8
ONCE = TWICE - 3 * (8 - WATCHED)


def script(
    call: str = "checkpoint(block, x, use_reentrant=False)",
    norm: str = "nn.LayerNorm(32)",
) -> str:
    return TRAIN.replace("CALL", call).replace("NORM", norm)


@pytest.fixture
def train(tmp_path: Path, gpurun: Gpurun) -> Callable[[str], KnobRun]:
    """Run a script without its recomputation."""
    return lambda text: run_under(gpurun, tmp_path, text, {"needless_recompute": "skip"})


@pytest.mark.parametrize(
    "call",
    [
        "checkpoint(block, x, use_reentrant=False)",
        "checkpoint(lambda x: checkpoint(block, x, use_reentrant=False), x, use_reentrant=False)",
        "checkpoint(functools.partial(block, scale=0.5), x, use_reentrant=False)",
        "checkpoint(block, x, scale=0.5, use_reentrant=False, determinism_check='none')",
        "checkpoint_sequential([block, nn.Identity()], 2, x, use_reentrant=False)",
    ],
)
def test_a_training_is_the_same_and_calls_each_block_once(
    tmp_path: Path, train: Callable[[str], KnobRun], call: str
) -> None:
    plain: dict[str, Any] = bare(tmp_path, script(call))
    found = train(script(call))
    assert found.outcomes("needless_recompute") == ["applied"]
    assert (plain.pop("runs"), found.printed.pop("runs")) == (TWICE, ONCE)
    assert found.printed == plain


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"norm": "nn.BatchNorm1d(32)"}, id="statistics are updated twice"),
        pytest.param(
            {"norm": "nn.utils.parametrizations.spectral_norm(nn.Linear(32, 32))"},
            id="so are a norm's vectors"),
        pytest.param(
            {"call": "checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)"},
            id="other random numbers"),
        pytest.param(
            {"call": "checkpoint(block, x, use_reentrant=True)"}, id="the reentrant kind"),
    ],
)  # fmt: skip
def test_what_would_train_otherwise_is_computed_again(
    tmp_path: Path, train: Callable[[str], KnobRun], changes: dict[str, str]
) -> None:
    text = script(**changes)
    found = train(text)
    assert "applied" not in found.outcomes("needless_recompute")
    assert found.printed == bare(tmp_path, text)
    assert found.printed["runs"] == TWICE


@pytest.mark.parametrize(
    ("call", "seen"), [("block(x)", False), ("checkpoint(block, x, use_reentrant=False)", True)]
)
def test_a_script_is_seen_to_compute_again(
    tmp_path: Path, gpurun: Gpurun, call: str, seen: bool
) -> None:
    (tmp_path / "train.py").write_text(script(call))
    assert gpurun("train.py", cwd=tmp_path).returncode == 0
    (log,) = tmp_path.glob(".gpurun/runs/*/events*.jsonl")
    traits = [json.loads(x) for x in log.read_text().splitlines() if '"trait"' in x]
    assert any("recomputes" in str(x) for x in traits) == seen
