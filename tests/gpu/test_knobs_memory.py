"""Knobs that save memory, on a device: its peak falls and the training stays the same."""

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

torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(DROP)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.register_buffer("mask", torch.eye(WIDTH))
    def forward(self, x):
        x = x + self.drop(self.down(torch.sigmoid(self.up(self.norm(x)))))
        return x + 0.01 * torch.nn.functional.linear(x, self.mask)

blocks = [Block() for _ in range(8)]
model = nn.Sequential(nn.Linear(16, WIDTH), *blocks, nn.Linear(WIDTH, 4)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses, scores = [], []
for step in range(8):
    x = torch.randn(4096, 16, device="cuda")
    loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 4)
    optimizer.zero_grad()
    loss.backward(retain_graph=step == 3)
    if step == 3:
        loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step == 1:
        torch.cuda.reset_peak_memory_stats()
    if step == 5:
        model.eval()
        with torch.no_grad():
            scores.append(model(torch.ones(8, 16, device="cuda")).sum().item())
        model.train()
print(json.dumps({
    "losses": losses, "scores": scores, "peak": torch.cuda.max_memory_allocated(),
    "drawn": torch.rand((), device="cuda").item(),
}))
"""


def train(
    gpurun: Gpurun, folder: Path, settings: dict[str, Any], width: int = 512, drop: float = 0.1
) -> KnobRun:
    """Train under settings with blocks of this width."""
    text = TRAIN.replace("WIDTH", str(width)).replace("DROP", str(drop))
    return run_under(gpurun, folder, text, settings)


@pytest.mark.parametrize(
    "settings",
    [{"checkpointing": "blocks"}, {"activation_offload": "host"}],
    ids=lambda s: next(iter(s)),
)
def test_less_memory_and_the_same_training(
    tmp_path: Path, gpurun: Gpurun, settings: dict[str, Any]
) -> None:
    (knob,) = settings
    plain, run = train(gpurun, tmp_path, {}).printed, train(gpurun, tmp_path, settings)
    assert run.outcomes(knob) == ["applied"]
    assert run.printed.pop("peak") < 0.75 * plain.pop("peak")
    assert run.printed["drawn"] == plain["drawn"], "dropout drew the same"
    for figures in ("losses", "scores"):
        assert run.printed[figures] == pytest.approx(plain[figures], rel=1e-4)


def test_small_activations_stay_on_the_device(tmp_path: Path, gpurun: Gpurun) -> None:
    run = train(gpurun, tmp_path, {"activation_offload": "host"}, width=8)
    assert run.outcomes("activation_offload") == ["skipped"]


def test_activations_are_kept_where_the_device_has_room(tmp_path: Path, gpurun: Gpurun) -> None:
    """The script checkpoints each block: without that it takes more memory, and draws the same."""
    text = TRAIN.replace("WIDTH", "512").replace("DROP", "0.1")
    text = text.replace(
        "model = nn.Sequential(nn.Linear(16, 512), *blocks, nn.Linear(512, 4)).cuda()",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(16, 512), nn.Linear(512, 4)
        self.blocks = nn.ModuleList(blocks)
    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        return self.head(x)
model = Net().cuda()
""",
    )
    assert "use_reentrant" in text
    plain = run_under(gpurun, tmp_path, text, {}).printed
    run = run_under(gpurun, tmp_path, text, {"needless_recompute": "skip"})
    assert run.outcomes("needless_recompute") == ["applied"]
    assert run.printed.pop("peak") > 1.3 * plain.pop("peak")
    assert run.printed["drawn"] == plain["drawn"]
    assert run.printed["losses"] == pytest.approx(plain["losses"], rel=1e-5)
