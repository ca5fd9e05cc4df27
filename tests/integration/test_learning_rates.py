"""The learning rates of a plain run are recorded as they change, and cost no step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Gpurun
from tests.run_events import events, run_in

pytestmark = pytest.mark.forked

TRAIN = """
import time, torch
x = torch.nn.Parameter(torch.ones(2))
y = torch.nn.Parameter(torch.ones(2))
first = torch.optim.SGD([{"params": [x]}, {"params": [y], "lr": 5.0}], lr=1)
second = torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], lr=torch.tensor(0.5))
halved = torch.optim.lr_scheduler.StepLR(first, step_size=1, gamma=0.5)
for step in range(4):
    (x.sum() + y.sum()).backward()
    first.step()
    halved.step()
    time.sleep(0.6)
for step in range(200):
    (x.sum() + y.sum()).backward()
    first.step()
"""


def test_changes_are_recorded_and_nothing_else(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = gpurun("train.py")
    assert done.returncode == 0, done.stderr.decode()
    told = [event["rates"] for event in events(run_in(tmp_path), "learning_rate")]
    assert told[0] == [1.0, None]
    assert told[-1] == [0.0625, None]
    assert len(told) == 5
    assert [first for first, _ in told] == sorted({first for first, _ in told}, reverse=True)


def test_a_script_without_an_optimizer_has_none(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "with torch.no_grad():\n"
        "    for _ in range(9): model(torch.ones(1, 2))\n"
    )
    assert gpurun("train.py").returncode == 0
    assert events(run_in(tmp_path), "steps")
    assert events(run_in(tmp_path), "learning_rate") == []
