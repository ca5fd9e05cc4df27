"""A larger batch is found through the script's own flag, and takes the user's consent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.tunings import configure, launch, lines

FLAGGED = """
import argparse, sys, time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
torch.manual_seed(0)
parser = argparse.ArgumentParser()
parser.add_argument("where")
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()

class Quick(Dataset):
    def __len__(self):
        return 960
    def __getitem__(self, index):
        return torch.ones(8) * index / 960, index % 2

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for epoch in range(2):
    for x, y in DataLoader(Quick(), batch_size=args.batch_size):
        time.sleep(0.01)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("batch", args.batch_size, args.where)
sys.exit(0 if sys.stdout.isatty() else 7)  # trials have a terminal, and succeed
"""


@pytest.mark.slow
def test_a_larger_batch_is_found_through_the_scripts_own_flag_and_applied_by_consent(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(FLAGGED)
    configure(tmp_path, "allow = ['training']\nmax_trials = 4\nbudget = '12m'")
    words = ("--json", "tuned.json", "train.py", "here", "--batch-size=8")
    done = launch(tmp_path, "--optimize", *words)
    report = json.loads((tmp_path / "tuned.json").read_text())
    said = lines(done)
    assert done.returncode == 7, done.stderr.decode()
    assert report["verdict"] == "faster", done.stderr.decode()
    batch = report["chosen"]["knobs"]["batch_size"]
    assert batch["via"] == "--batch-size"
    assert done.stdout == f"batch {batch['batch_size']} here\n".encode()
    assert batch["batch_size"] > 8
    assert report["larger_batch"]["batch_size"] == batch["batch_size"]
    assert said[-1].startswith("verdict=failed exit=7")
    assert all(line.startswith(("gpurun: ", "verdict=", " ", "")) for line in said)
