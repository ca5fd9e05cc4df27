"""A script that evaluates before it trains is audited in its training steps, and only there."""

from __future__ import annotations

import os
from pathlib import Path

from gpurun.measure.run_events import read_run
from gpurun.records.spec import RunSpec, StopRule, TrialSpec
from gpurun.same.launch_audit import audit_of
from tests.forked import run_recorded

SCRIPT = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
with torch.no_grad():
    for _ in range(9):
        model(torch.randn(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
from gpurun.runtime.observe.step_clock import CLOCK
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
    done = run_recorded(["train.py"], tmp_path, spec)
    assert (done.returncode, done.stdout) == (0, b"hooks left: 0\n"), done.stderr.decode()
    (log,) = read_run(tmp_path).processes
    shown = audit_of(log, seed=0)
    assert shown is not None
    assert [audit.step for audit in shown.audits] == [1, 2, 3, 4, 5, 6]
    assert all(audit.gradient_norms for audit in shown.audits)
