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


RETRIES = """
class Large(torch.nn.Linear):
    def forward(self, x):
        if len(x) > 16:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return super().forward(x)

model = Large(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for epoch in range(2):
    for x, y in DataLoader(Quick(), batch_size=args.batch_size):
        time.sleep(0.01)
        while True:
            optimizer.zero_grad()
            try:
                torch.nn.functional.cross_entropy(model(x), y).backward()
                break
            except torch.OutOfMemoryError:
                x, y = x[: len(x) // 2], y[: len(y) // 2]
        optimizer.step()
"""
"""It goes on with half of a batch that does not fit: that is no batch of four times the size."""


@pytest.mark.slow  # quick twin: unit/test_tuner_objections.py
def test_a_smaller_batch_of_the_scripts_own_is_not_credited_as_the_larger_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(FLAGGED[: FLAGGED.index("model = ")] + RETRIES)
    configure(tmp_path, "allow = ['training']\nmax_trials = 4\nbudget = '120s'")
    words = ("--tune-only", "--json", "tuned.json", "train.py", "here")
    done = launch(tmp_path, "--optimize", *words)
    assert done.returncode in (0, 3), done.stderr.decode()  # 3: its proof is not settled
    rows = json.loads((tmp_path / "tuned.json").read_text())["ladder"]
    sizes = ((row["changes"].get("batch_size"), row) for row in rows)
    refused = {size["batch_size"]: row for size, row in sizes if size is not None}[32]
    assert not refused["kept"]
    assert "the model ran out of memory at train.py:" in refused["reason"]
    assert "and the script went on" in refused["reason"]


@pytest.mark.slow  # quick twin: unit/test_tuner_batch_sizes.py
def test_a_number_that_is_written_out_twice_is_not_applied(tmp_path: Path) -> None:
    """Only the training would get larger batches, and the evaluation would fail."""
    script = FLAGGED.replace("args.batch_size", "8").replace('"--batch-size"', '"--steps"')
    hidden = "state = torch.zeros(8, 2)\n"
    (tmp_path / "train.py").write_text(script.replace("for epoch", hidden + "for epoch", 1))
    words = ("--dry-run", "--allow", "training", "train.py", "here")
    done = launch(tmp_path, "--optimize", *words)
    assert "the script has its batch size elsewhere, too: train.py:" in done.stderr.decode()
