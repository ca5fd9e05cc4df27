"""A data set that keeps what it has loaded: its first epoch says nothing of the training."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.tunings import configure, launch, lines, report_of

SCRIPT = """
import time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
torch.manual_seed(0)

class Kept(Dataset):
    def __init__(self):
        self.known = {}
    def __len__(self):
        return 4 * BATCHES
    def __getitem__(self, index):
        if index not in self.known:
            time.sleep(SLEEP)
            self.known[index] = torch.full((8,), index / len(self))
        return SAMPLE, index % 2

loader = DataLoader(Kept(), batch_size=4, shuffle=True)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(EPOCHS):
    for step, (x, y) in enumerate(loader):
        if epoch == 0 and step in (0, 12):
            time.sleep(0.5)  # something starts
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
KEEPS = "self.known[index]"
FORGETS = "self.known.pop(index)"


def script(batches: int, epochs: object, sleep: float = 0.005, sample: str = KEEPS) -> str:
    """It loads each sample once, unless it forgets them."""
    filled = SCRIPT.replace("BATCHES", str(batches)).replace("EPOCHS", str(epochs))
    return filled.replace("SLEEP", str(sleep)).replace("SAMPLE", sample)


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (KEEPS, "promised 39.5×: not compared with this run, whose steps took "),
        (FORGETS, "promised 39.5×, running "),
    ],
)
def test_a_run_is_held_against_the_promise_only_where_its_epochs_are_alike(
    tmp_path: Path,
    gpurun: Callable[..., subprocess.CompletedProcess[bytes]],
    sample: str,
    said: str,
) -> None:
    (tmp_path / "train.py").write_text(script(30, 4, sample=sample))
    promised = {
        "settings": {"loader_persistent": True}, "speedup": 39.5, "training_loaders": [],
        "baseline_samples_per_second": 190.0, "command": [], "fingerprint": {},
        "schema": "gpurun/settings@1",
    }  # fmt: skip
    (tmp_path / "settings.json").write_text(json.dumps(promised))
    done = gpurun("--settings", "settings.json", "train.py")
    assert done.returncode == 0
    (line,) = [line for line in done.stderr.decode().splitlines() if "promised" in line]
    assert line.startswith(f"gpurun: note: {said}")


@pytest.mark.slow  # quick twin: the plan of its trials, in unit/test_tuner_second_epoch.py
def test_nothing_is_promised_by_a_first_epoch_that_is_not_like_the_others(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script(150, 200, 0.01))
    configure(tmp_path, "allow = ['pipeline']\nbudget = '60s'")
    done = launch(tmp_path, "--optimize", "--tune-only", "train.py")
    report = report_of(tmp_path)
    assert any("in the first epoch and" in line for line in report["decisions"]), lines(done)
    assert report["verdict"] != "faster" or report["speedup"] < 4, "ten workers gain more at first"


@pytest.mark.slow
@pytest.mark.xfail(strict=True, reason="the ladder measures short epochs through the second one")
def test_a_gain_of_the_first_epoch_counts_by_its_part_of_the_whole_training(tmp_path: Path) -> None:
    """It says how many epochs it has. Most of its time is the first one, which workers shorten."""
    options = "import argparse\nparser = argparse.ArgumentParser()\n"
    options += "parser.add_argument('--epochs', type=int, default=3)\n"
    options += "asked = parser.parse_args()\n"
    (tmp_path / "train.py").write_text(options + script(100, "asked.epochs", 0.01))
    configure(tmp_path, "allow = ['pipeline']\nbudget = '90s'")
    launch(tmp_path, "--optimize", "--tune-only", "train.py")
    report = report_of(tmp_path)
    assert "loader_workers" in report["chosen"]["knobs"]
    assert 1.2 < report["speedup"] < 4
