"""The batch size knob in real scripts: by the flag, by the loader, and with its learning rate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.knob_runs import KnobRun, run_under

FLAGGED = """
import argparse, json, sys
import torch
from torch.utils.data import DataLoader, TensorDataset

class SAM(torch.optim.Optimizer):
    '''As the public one: it shares its groups with the optimizer that it wraps.'''
    def __init__(self, params, base, **options):
        super().__init__(params, dict(options))
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups
    def step(self, closure=None):
        self.base.step()

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.5)
args = parser.parse_args()
model = torch.nn.Linear(4, 2)
data = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
training = DataLoader(data, batch_size=args.batch_size)
evaluation = DataLoader(data, batch_size=8)
optimizer = torch.optim.SGD(
    [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.25}], lr=args.lr)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** step)
sam = SAM(torch.nn.Linear(2, 2).parameters(), torch.optim.SGD, lr=0.5)
sizes, first_rates = [], [g["lr"] for g in optimizer.param_groups]
for x, y in training:
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    sizes.append(len(x))
schedule.step()
print(json.dumps({
    "sizes": sizes, "rates": first_rates, "default": optimizer.defaults["lr"],
    "scheduled": [g["lr"] for g in optimizer.param_groups], "sam": sam.param_groups[0]["lr"],
    "evaluation": evaluation.batch_size, "argv": sys.argv[1:],
}))
"""
LINE = FLAGGED.splitlines().index("training = DataLoader(data, batch_size=args.batch_size)") + 1


@pytest.fixture
def train(tmp_path: Path, gpurun: Callable[..., Any]) -> Callable[..., KnobRun]:
    """Train under a value of the knob."""

    def run(via: str, rule: str, arguments: tuple[str, ...] = ()) -> KnobRun:
        value = {"batch_size": 32, "from": 8, "via": via, "learning_rate": rule}
        keys = (f"train.py:{LINE}#0",)
        return run_under(gpurun, tmp_path, FLAGGED, {"batch_size": value}, keys, arguments)

    return run


def test_by_the_flag_every_rate_is_scaled_once_before_schedules(train: Any) -> None:
    run = train("--batch-size", "linear", ("--lr", "0.5", "--batch-size=8"))
    assert run.printed == {
        "sizes": [32, 32],
        "rates": [2.0, 1.0],
        "default": 2.0,
        "scheduled": [1.0, 0.5],
        "sam": 2.0,
        "evaluation": 8,
        "argv": ["--lr", "0.5", "--batch-size=32"],
    }
    assert set(run.outcomes("batch_size")) == {"applied"}


def test_by_the_loader_only_the_training_loader_is_resized(train: Any) -> None:
    run = train("loader", "sqrt")
    assert run.printed["sizes"] == [32, 32]
    assert run.printed["evaluation"] == 8
    assert run.printed["argv"] == []
    assert run.printed["rates"] == [1.0, 0.5]


def test_the_rate_can_be_kept(train: Any) -> None:
    assert train("--batch-size", "keep").printed["rates"] == [0.5, 0.25]


def test_a_loader_that_is_not_known_to_train_is_not_resized(
    gpurun: Callable[..., Any], tmp_path: Path
) -> None:
    value = {"batch_size": 32, "from": 8, "via": "loader", "learning_rate": "keep"}
    run = run_under(gpurun, tmp_path, FLAGGED, {"batch_size": value})
    assert run.printed["sizes"] == [8] * 8
    assert set(run.outcomes("batch_size")) == {"skipped"}
