"""Workers that write into shared memory again: the script computes with exactly what it loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.integration.knob_runs import KnobRun, run_under

pytestmark = pytest.mark.gpu

TRAIN = """
import json, os
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate

class Rows(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        row = torch.full((3, 64, 64), float(index))
        return {"x": row, "mask": row.bool(), "y": torch.tensor(float(index)), "name": str(index)}

class Own:
    '''A batch that pins itself, or does not.'''
    def __init__(self, samples):
        self.batch = default_collate(samples)
    def __getitem__(self, key):
        return self.batch[key]

class Pinning(Own):
    def pin_memory(self):
        self.batch = {k: v.pin_memory() if hasattr(v, "cuda") else v for k, v in self.batch.items()}
        return self

def collate(samples):
    batch = default_collate(samples)
    file = os.fstat(batch["x"].untyped_storage()._share_fd_cpu_()[0]).st_ino
    return {**batch, "file": file}

def main():
    torch.manual_seed(0)
    model = nn.Linear(3 * 64 * 64, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    wrong, files, kept = [0], set(), []
    ahead = torch.randn(2048, 2048, device="cuda")
    batches = DataLoader(Rows(), batch_size=32, shuffle=True, num_workers=3, pin_memory=True, MORE)
    for epoch in range(8):
        for number, batch in enumerate(batches):
            names = torch.tensor([float(name) for name in batch["name"]])
            for _ in range(2):
                ahead = (ahead @ ahead).clamp(-1, 1)  # the GPU lags behind
            x, y = batch["x"].to("cuda", non_blocking=True), batch["y"].cuda()
            expected = names.cuda()[:, None, None, None].expand_as(x)
            wrong.append((x != expected).sum() + (y != names.cuda()).sum())
            wrong.append((batch["mask"].cuda() != expected.bool()).sum())
            out = model(x.flatten(1))
            loss = nn.functional.mse_loss(out[:, 0], y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if isinstance(batch, dict):
                files.add(batch.get("file"))
            kept = [*kept[-30:], (batch["x"], names)]
            late, old = kept[0]
            wrong.append((late != old[:, None, None, None]).sum().cuda())
            if epoch % 3 == 1 and number == 9:
                break
    print(json.dumps({"wrong": int(sum(wrong)), "files": len(files)}))

if __name__ == "__main__":
    main()
"""
BATCHES = 5 * 20 + 3 * 10
FEWER = "persistent_workers=True, collate_fn=collate"


def train(gpurun: Gpurun, folder: Path, more: str, **settings: Any) -> KnobRun:
    """Train for some epochs, of which some are left early."""
    script = TRAIN.replace("MORE", more)
    return run_under(gpurun, folder, script, {"loader_buffers": "reuse", **settings})


@pytest.mark.parametrize("ahead", [{}, {"device_prefetch": "ahead"}], ids=["plain", "ahead"])
@pytest.mark.parametrize(
    "more", ["collate_fn=None", FEWER, "collate_fn=collate, prefetch_factor=6"]
)
def test_every_batch_is_the_one_that_was_loaded(
    tmp_path: Path, gpurun: Gpurun, more: str, ahead: dict[str, str]
) -> None:
    run = train(gpurun, tmp_path, more, **ahead)
    assert run.outcomes("loader_buffers") == ["applied"]
    assert run.printed["wrong"] == 0
    if more == FEWER:
        assert run.printed["files"] < BATCHES / 3


@pytest.mark.parametrize("own", ["Own", "Pinning"])
def test_batches_of_the_scripts_own_type_are_never_written_over(
    tmp_path: Path, gpurun: Gpurun, own: str
) -> None:
    run = train(gpurun, tmp_path, f"collate_fn={own}")
    assert run.outcomes("loader_buffers") == []
    assert run.printed["wrong"] == 0


def test_what_another_setting_pins_is_written_into_again_too(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    script = TRAIN.replace("pin_memory=True, MORE", "collate_fn=collate")
    settings = {"loader_buffers": "reuse", "loader_pin_memory": True}
    run = run_under(gpurun, tmp_path, script, settings)
    assert run.outcomes("loader_buffers") == ["applied"]
    assert run.printed["wrong"] == 0
