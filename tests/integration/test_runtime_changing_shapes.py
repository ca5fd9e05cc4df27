"""A trial notices that a model's inputs change their shape all the time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.records.spec import RunSpec, StopRule, TrialSpec
from tests.forked import run_recorded
from tests.run_events import events, run_in

TRAINING = """
import torch

net = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Flatten(0, 1), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(12):
    net(torch.zeros(2, LENGTH, dtype=torch.long)).mean().backward()
    optimizer.step()
    with torch.no_grad():
        net(torch.zeros(2, step + 1, dtype=torch.long))
"""


@pytest.mark.parametrize(
    ("length", "changes"),
    [("5 + step", True), ("3 if step % 4 == 3 else 8", False)],
    ids=["sentences", "the last batch of an epoch, and evaluations of any length"],
)
def test_many_shapes_of_training_batches_are_noticed(
    tmp_path: Path, length: str, changes: bool
) -> None:
    (tmp_path / "train.py").write_text(TRAINING.replace("LENGTH", length))
    stop = StopRule(min_steps=99, min_seconds=9, max_steps=99, warmup_steps=0, audit_steps=0)
    run_dir = str(tmp_path / ".gpurun" / "runs" / "1")
    spec = RunSpec(run_dir, os.getpid(), (), trial=TrialSpec(stop))
    done = run_recorded(["train.py"], tmp_path, spec)
    assert done.returncode == 0, done.stderr.decode()
    seen = [event["trait"] for event in events(run_in(tmp_path), "trait")]
    assert ("changing_shapes" in seen) is changes
