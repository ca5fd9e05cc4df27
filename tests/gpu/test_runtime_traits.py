"""Batches that are on the GPU already are noticed, and autocast of torch's own there is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Gpurun
from tests.run_events import events, run_in

pytestmark = pytest.mark.gpu

SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    for x, y in DataLoader(TensorDataset(torch.ones(8, 1).cuda(), torch.ones(8)), batch_size=4):
        pass
    for x, y in DataLoader(TensorDataset(torch.ones(8, 1), torch.ones(8)), pin_memory=True):
        pass
    torch.nn.parallel.parallel_apply([torch.nn.Linear(1, 1).cuda()], [x.cuda()], devices=[0])
"""


def test_batches_on_the_gpu_are_noticed_and_torchs_own_autocast_is_not(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = gpurun("train.py")
    assert done.returncode == 0, done.stderr.decode()
    traits = [(e["trait"], e["detail"]) for e in events(run_in(tmp_path), "trait")]
    assert traits == [("cuda_batches", "train.py:6#0")]
