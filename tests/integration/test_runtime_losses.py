"""A loss that refuses to be looked at is looked at once; its backward passes count as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun

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


def record(folder: Path, event: str) -> list[dict[str, Any]]:
    (path,) = folder.glob(".gpurun/runs/*/events-*.jsonl")
    return [x for x in map(json.loads, path.read_text().splitlines()) if x["event"] == event]


@pytest.mark.parametrize("refused", ["numel", "detach"])
@pytest.mark.parametrize("step", list(STEPS))
def test_a_loss_that_refuses_costs_no_backward_pass(
    tmp_path: Path, gpurun: Gpurun, refused: str, step: str
) -> None:
    (tmp_path / "train.py").write_text(
        SCRIPT.replace("REFUSED", refused).replace("STEP", STEPS[step])
    )
    done = gpurun("train.py")
    assert done.returncode == 0, done.stderr.decode()
    assert [x["hook"] for x in record(tmp_path, "hook")] == ["loss"]
    rows = [row for x in record(tmp_path, "steps") if x["clock"] == "backward" for row in x["rows"]]
    assert len(rows) == 5
