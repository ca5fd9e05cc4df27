"""Scripts whose loop changes what their loader reads next: added workers would not see it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.knob_runs import KnobRun, run_under

SETTINGS = {"loader_workers": 2, "loader_persistent": True, "loader_prefetch": 2}

SCRIPT = """
import json, os, random, time
import torch
from torch.utils.data import (
    DataLoader, Dataset, DistributedSampler, RandomSampler, WeightedRandomSampler
)
import bank

class Points(Dataset):
    def __init__(self):
        self.rows = list(range(64))
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((4,), float(self.rows[index])), index, os.getpid()

class Mining(Points):
    def __getitem__(self, index):
        return torch.full((4,), float(bank.hardest(index))), index, os.getpid()

class ByLoss(torch.utils.data.Sampler):
    def __init__(self):
        self.losses, self.dice = torch.ones(64), random.Random(1)
        self.drawn = []
    def __len__(self):
        return 64
    def __iter__(self):
        for _ in range(64):
            (index,) = self.dice.choices(range(64), self.losses.tolist())
            self.drawn.append(index)
            yield index

class Timer:
    laps, seconds = 0, 0.0
    def lap(self):
        self.laps, self.seconds = self.laps + 1, time.monotonic()

timer, average, step = Timer(), 0.0, 0
data, sampler, changed = Points(), None, lambda index: None
before_epoch = lambda epoch: None
FORM
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
seen, processes, ahead = [], [], []
for epoch in range(2):
    before_epoch(epoch)
    batches = iter(loader)
    for x, index, pid in batches:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        timer.lap()
        average = 0.9 * average + 0.1 * float(loss.detach())
        step += 1
        changed(index)
        seen.append([x[:, 0].tolist(), index.tolist()])
        processes.append(pid[0].item() == os.getpid())
        ahead.append(vars(batches).get("_send_idx", 0) - vars(batches).get("_rcvd_idx", 0))
print(json.dumps({"seen": seen, "alone": processes, "ahead": ahead, "now": loader.num_workers}))
"""
BANK = """
FOUND = {index: index for index in range(64)}
def hardest(index):
    return FOUND[63 - index]
"""
CHANGING = {
    "losses": """
sampler = ByLoss()
def changed(index):
    sampler.losses[index] *= 0.1
""",
    "rows": """
def changed(index):
    data.rows.append(data.rows.pop(0))
""",
    "FOUND": """
data = Mining()
def changed(index):
    for each in index.tolist():
        bank.FOUND[each] += 1
""",
}
ORDINARY = {
    "set_epoch": """
sampler = DistributedSampler(data, num_replicas=1, rank=0)
before_epoch = sampler.set_epoch
""",
    "a generator": "sampler = RandomSampler(data, generator=torch.Generator().manual_seed(3))",
    "fixed weights": """
sampler = WeightedRandomSampler(torch.arange(1.0, 65.0), 64, generator=torch.Generator())
""",
    "a sampler with a state": "sampler = ByLoss()",
}

Under = Callable[[str, dict[str, Any]], KnobRun]


@pytest.fixture
def under(tmp_path: Path, gpurun: Callable[..., Any]) -> Under:
    """Run the script in one of its forms under settings."""
    (tmp_path / "bank.py").write_text(BANK)
    return lambda form, settings: run_under(
        gpurun, tmp_path, SCRIPT.replace("FORM", form), settings
    )


@pytest.mark.parametrize("name", CHANGING)
def test_changes_of_the_loop_reach_the_next_batch_as_without_workers(
    under: Under, name: str
) -> None:
    alone = under(CHANGING[name], {}).printed
    run = under(CHANGING[name], SETTINGS)
    assert run.printed["seen"] == alone["seen"]
    assert run.printed["alone"] == [False] + [True] * 31
    assert run.printed["now"] == 0
    reason = f"the script changes {name} during an epoch, which workers would not see"
    for knob in SETTINGS:
        assert (knob, "revoked", reason) in run.knobs


def test_changes_that_begin_later_are_told_and_seen_from_the_next_comparison_on(
    under: Under,
) -> None:
    form = CHANGING["losses"].replace("    sampler", "    if step > 6: sampler")
    alone, run = under(form, {}).printed, under(form, SETTINGS)
    assert run.printed["alone"] == [False] * 12 + [True] * 20
    assert run.printed["seen"][:7] == alone["seen"][:7]
    assert len(run.printed["seen"]) == 32
    reason = "the script changes losses during an epoch, which its workers did not see"
    assert ("loader_workers", "revoked", reason) in run.knobs


@pytest.mark.parametrize("name", ORDINARY)
def test_other_loops_keep_their_workers_and_what_these_read_ahead(under: Under, name: str) -> None:
    alone = under(ORDINARY[name], {}).printed
    run = under(ORDINARY[name], SETTINGS)
    assert {outcome for _, outcome, _ in run.knobs} == {"applied"}
    assert run.printed["seen"] == alone["seen"]
    assert not any(run.printed["alone"])
    assert run.printed["now"] == 2
    assert run.printed["ahead"] == [0, 0, 0, *[4] * 9, 3, 2, 1, 0, *[4] * 12, 3, 2, 1, 0]
