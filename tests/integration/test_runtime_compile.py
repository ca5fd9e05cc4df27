"""Scripts that compile: the same graphs, no break of ours, the same numbers, and steps are seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.once import once
from tests.run_events import events, rows_by, run_in

SCRIPT = """
import json, sys, torch
import torch._dynamo as dynamo
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 2)
    def forward(self, x):
        return self.b(self.a(x).relu())

loss_of = nn.functional.cross_entropy

def run(what):
    dynamo.reset()
    dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model, data = Net(), TensorDataset(torch.randn(100, 8), torch.randint(0, 2, (100,)))
    loader, optimizer = DataLoader(data, batch_size=8), torch.optim.SGD(model.parameters(), 0.1)
    called = torch.compile(model, backend="eager") if what == "module" else model
    if what == "in place":
        model.compile(backend="eager")
    def loss_step(x, y):
        return loss_of(called(x), y)
    def autocast_step(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(called(x).float(), y)
    def whole_step(x, y):
        optimizer.zero_grad()
        loss = loss_of(called(x), y)
        loss.backward()
        optimizer.step()
        return loss
    if what == "loss":
        loss_step = torch.compile(loss_step, backend="eager")
    if what == "autocast":
        loss_step = torch.compile(autocast_step, backend="eager")
    if what == "step":
        whole_step = torch.compile(whole_step, backend="eager")
    step = torch.compile(optimizer.step, backend="eager") if what == "optimizer" else optimizer.step
    for epoch in range(3):
        for x, y in loader:
            if what == "step":
                loss = whole_step(x, y)
            else:
                optimizer.zero_grad()
                loss = loss_step(x, y)
                loss.backward()
                step()
        model.eval()
        with torch.no_grad():
            called(data.tensors[0])
        model.train()
    counters = dynamo.utils.counters
    breaks = sum(counters["graph_break"].values())
    return [loss.item(), counters["stats"]["unique_graphs"], counters["stats"]["calls_captured"],
            sum(counters["recompiles"].values()), breaks]

print(json.dumps({what: run(what) for what in WHAT}))
"""
WHAT = ("module", "in place", "loss", "autocast", "step", "optimizer")


@dataclass(frozen=True)
class Ran:
    """What the script printed under python and under gpurun, and the record of the latter."""

    python: dict[str, list[Any]]
    gpurun: dict[str, list[Any]]
    result: dict[str, Any]
    optimizer_rows: int


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return once(tmp_path_factory, "compile", both)


def both(folder: Path) -> Ran:
    """The script under plain python and under gpurun."""
    (folder / "script.py").write_text(f"WHAT = {WHAT}\n{SCRIPT}")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GPURUN_")}
    printed = [
        json.loads(
            subprocess.run(
                [sys.executable, *words, "script.py"],
                cwd=folder,
                env={**environment, "PYTHONPATH": str(REPOSITORY)},
                capture_output=True,
                check=True,
            ).stdout
        )
        for words in ([], ["-m", "gpurun"])
    ]
    run = run_in(folder)
    rows = rows_by("optimizer", events(run))
    return Ran(printed[0], printed[1], json.loads((run / "result.json").read_text()), len(rows))


@pytest.mark.slow  # quick twin: unit/test_knobs_candidates.py
@pytest.mark.parametrize("what", WHAT)
def test_a_compiled_script_is_left_as_it_is(ran: Ran, what: str) -> None:
    assert ran.gpurun[what][:4] == ran.python[what][:4]
    assert ran.gpurun[what][4] <= ran.python[what][4], "a graph break of ours"


@pytest.mark.slow  # quick twin: test_runtime_shapes.py
def test_the_steps_of_each_compiled_loop_are_counted(ran: Ran) -> None:
    assert ran.result["hook_errors"] == []
    assert ran.result["clock"] == "optimizer"
    assert ran.optimizer_rows == len(WHAT) * 3 * 13
