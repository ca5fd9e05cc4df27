"""A loss that refuses to be looked at is looked at once; its backward passes count as before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.records.spec import RunSpec
from tests.forked import run_recorded
from tests.run_events import events, rows_by

SCRIPT = """
import torch

class Odd(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

    def REFUSED(self, *args):
        raise RuntimeError("not of me")

weight = torch.ones(2, requires_grad=True)
for step in range(5):
    loss = (weight * weight).sum().as_subclass(Odd)
    STEP
"""
STEPS = {
    "backward": "torch.autograd.backward(loss, torch.ones(())); weight.grad = None",
    "grad": "torch.autograd.grad(loss, weight, torch.ones(()))",
}


@pytest.mark.parametrize("refused", ["numel", "detach"])
@pytest.mark.parametrize("step", list(STEPS))
def test_a_loss_that_refuses_costs_no_backward_pass(
    tmp_path: Path, refused: str, step: str
) -> None:
    (tmp_path / "train.py").write_text(
        SCRIPT.replace("REFUSED", refused).replace("STEP", STEPS[step])
    )
    run = tmp_path / "run"
    done = run_recorded(["train.py"], tmp_path, RunSpec(str(run), os.getpid()))
    assert done.returncode == 0, done.stderr.decode()
    assert [x["hook"] for x in events(run, "hook")] == ["loss"]
    assert len(rows_by("backward", events(run))) == 5
