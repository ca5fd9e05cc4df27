"""A data set whose workers hang or die: the change that adds workers is given up, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.tunings import configure, launch, lines, report_of

SCRIPT = """
import os, signal, time, torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
torch.set_num_threads(1)
torch.manual_seed(0)

class Slow(Dataset):
    def __len__(self):
        return 40000
    def __getitem__(self, index):
        time.sleep(0.001)
        if get_worker_info() is not None:
            {in_worker}
        return torch.ones(8) * index / 40000, index % 2

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Slow(), batch_size=4):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("in_worker", "reason"),
    [
        ("time.sleep(600)", "hangs: given up after"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "DataLoader worker"),
    ],
    ids=["hang", "die"],
)
def test_workers_that_do_not_work_are_a_row_of_the_report_and_nothing_else(
    tmp_path: Path, in_worker: str, reason: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(in_worker=in_worker))
    configure(tmp_path, "allow = ['pipeline']\npatience = '25s'\nmax_trials = 5\nbudget = '7m'")
    done = launch(tmp_path, "--optimize", "--tune-only", "train.py")
    rows = [r for r in report_of(tmp_path)["ladder"] if "loader_workers" in r["changes"]]
    assert rows
    assert not any(row["kept"] for row in rows)
    assert any(reason in row["reason"] for row in rows), rows
    assert lines(done)[-1].startswith("verdict=")
    assert done.returncode in (0, 3)
