"""A script that evaluates before it trains is audited in its training steps, and only there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from gpurun.launch.environment import child_environment
from gpurun.measure.events import read_run
from gpurun.records.codec import to_json
from gpurun.records.spec import RunSpec, StopRule, TrialSpec
from gpurun.tuner.evidence import evidence

SCRIPT = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
with torch.no_grad():
    for _ in range(9):
        model(torch.randn(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
from gpurun.runtime.steps import CLOCK
for step in range(40):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    if step == 10:
        print("hooks left:", len(CLOCK.before_step))
"""


def test_evaluation_before_training_leaves_no_audit_behind(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    stop = StopRule(min_steps=30, min_seconds=0, max_steps=30, warmup_steps=2, audit_steps=6)
    spec = RunSpec(str(tmp_path), os.getpid(), trial=TrialSpec(stop))
    (tmp_path / "spec.json").write_text(json.dumps(to_json(spec)))
    environment = child_environment(tmp_path / "spec.json", dict(os.environ))
    command = [sys.executable, "train.py"]
    output = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)
    assert output == "hooks left: 0\n"
    (log,) = read_run(tmp_path).processes
    shown = evidence(log, seed=0)
    assert shown is not None
    assert [audit.step for audit in shown.audits] == [1, 2, 3, 4, 5, 6]
    assert all(audit.gradient_norms for audit in shown.audits)
