"""Batches copied ahead to the GPU: the script computes with exactly what it loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.integration.knob_runs import KnobRun, run_under

pytestmark = pytest.mark.gpu

TRAIN = """
import json
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        row = torch.full((3, 64, 64), float(index))
        return {"x": row, "y": torch.tensor(float(index)), "name": str(index)}

def main():
    torch.manual_seed(0)
    model = nn.Linear(3 * 64 * 64, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    wrong = [0]
    ahead = torch.randn(2048, 2048, device="cuda")
    for epoch in range(3):
        for batch in DataLoader(Rows(), batch_size=16, shuffle=True, num_workers=WORKERS):
            names = torch.tensor([float(name) for name in batch["name"]])
            for _ in range(4):
                ahead = (ahead @ ahead).clamp(-1, 1)  # the GPU lags behind
            USE
            expected = names.cuda()[:, None, None, None].expand_as(x)
            wrong.append((x != expected * FACTOR).sum() + (y != names.cuda()).sum())
            out = model(x.flatten(1).float())
            loss = nn.functional.mse_loss(out[:, 0], y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(json.dumps({"wrong": int(sum(wrong)), "memory": torch.cuda.max_memory_allocated()}))

if __name__ == "__main__":
    main()
"""

PLAIN = 'x, y = batch["x"].to("cuda"), batch["y"].cuda(non_blocking=True)'


def train(
    gpurun: Gpurun, folder: Path, use: str = PLAIN, factor: int = 1, workers: int = 2
) -> KnobRun:
    """Train on batches that are moved as `use` says; values are `factor` times what was loaded."""
    script = TRAIN.replace("USE", use.replace("\n", "\n            "))
    script = script.replace("FACTOR", str(factor)).replace("WORKERS", str(workers))
    settings: dict[str, Any] = {"device_prefetch": "ahead", "loader_pin_memory": True}
    return run_under(gpurun, folder, script, settings)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_batch_is_the_one_that_was_loaded(
    tmp_path: Path, gpurun: Gpurun, workers: int
) -> None:
    run = train(gpurun, tmp_path, workers=workers)
    assert set(run.outcomes("device_prefetch")) == {"applied"}
    assert run.printed["wrong"] == 0


@pytest.mark.parametrize(
    ("use", "factor"),
    [
        ('batch["x"].mul_(2)\n' + PLAIN, 2),
        ('batch["x"].numpy()[:] *= 2\n' + PLAIN, 2),
        (PLAIN + '\nbatch["x"].zero_()', 1),
        (PLAIN + '\nbatch["x"].zero_(); x = x.clone(); batch["y"].zero_()', 1),
    ],
)
def test_what_the_script_does_to_its_own_tensor_counts(
    tmp_path: Path, gpurun: Gpurun, use: str, factor: int
) -> None:
    assert train(gpurun, tmp_path, use, factor).printed["wrong"] == 0


def test_a_change_behind_torchs_back_ends_it(tmp_path: Path, gpurun: Gpurun) -> None:
    run = train(gpurun, tmp_path, 'batch["x"].data.mul_(2)\n' + PLAIN, 2)
    assert run.outcomes("device_prefetch") == ["skipped"]
    assert run.printed["wrong"] == 0


def test_types_and_layouts_are_those_that_were_asked_for(tmp_path: Path, gpurun: Gpurun) -> None:
    use = (
        'x = batch["x"].to("cuda:0", torch.float64, memory_format=torch.channels_last)\n'
        "assert x.dtype is torch.float64\n"
        "assert x.is_contiguous(memory_format=torch.channels_last)\n"
        'y = batch["y"].to(device=torch.device("cuda"), copy=True)'
    )
    run = train(gpurun, tmp_path, use)
    assert run.printed["wrong"] == 0
    assert set(run.outcomes("device_prefetch")) == {"applied"}


def test_no_more_than_a_few_batches_lie_on_the_device(tmp_path: Path, gpurun: Gpurun) -> None:
    run = train(gpurun, tmp_path)
    batch = 16 * 3 * 64 * 64 * 4
    matrices = 6 * 2048 * 2048 * 4
    assert run.printed["memory"] < matrices + 30 * batch
