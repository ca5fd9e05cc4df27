"""Model and loader, each alone in a real trial of scripts as people write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpurun.arguments.options import Target, TargetKind
from gpurun.isolation.api import require
from gpurun.records.events import CeilingsEvent
from gpurun.records.spec import StopRule, TrialSpec
from gpurun.trials.launch_request import LaunchRequest
from gpurun.trials.outcome import Outcome
from gpurun.trials.trial_launcher import TrialLauncher

BATCH = 4
LOADS, COMPUTES = 0.03, 0.015
"""Seconds that a batch takes at least: in the loader, and in the rest of a step."""
STOP = StopRule(min_steps=16, min_seconds=0.5, max_steps=200, warmup_steps=4, audit_steps=0)

SCRIPT = f"""
import itertools, time, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Rows(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        time.sleep({LOADS / BATCH})
        return {{"x": torch.randn(8), "index": index}}

class Stream(IterableDataset):
    def __init__(self, rows):
        self.rows = rows
    def __iter__(self):
        return self.rows

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def step(batch):
    print("indices", batch.pop("index").tolist(), flush=True)
    time.sleep({COMPUTES})
    optimizer.zero_grad()
    model(batch["x"]).square().mean().backward()
    optimizer.step()
"""
NEW_EACH_EPOCH = """
while True:
    for batch in DataLoader(Rows(), batch_size=4, shuffle=True):
        step(batch)
"""
LASTING_WORKERS = """
loader = DataLoader(Rows(), batch_size=4, num_workers=2, persistent_workers=True)
while True:
    for batch in loader:
        step(batch)
"""
ENDLESS_STREAM = """
rows = Rows()
for batch in DataLoader(Stream(rows[i % 48] for i in itertools.count()), batch_size=4):
    step(batch)
"""
ENDING_STREAM = """
rows = Rows()
for batch in DataLoader(Stream(rows[i] for i in range(24)), batch_size=4):
    step(batch)
"""
NO_LOADER = """
while True:
    step({"x": torch.randn(4, 8), "index": torch.zeros(1)})
"""
TWO_LOADERS = """
one, other = (DataLoader(Rows(), batch_size=4) for _ in range(2))
while True:
    for batch, _ in zip(one, other):
        step(batch)
"""

Launch = Callable[[str], Outcome]


@pytest.fixture
def launch(tmp_path: Path, clean_environment: dict[str, str]) -> Iterator[Launch]:
    mode, _ = require(tmp_path, in_place=False)
    launcher = TrialLauncher(tmp_path / "launches", mode)
    tree = tmp_path / "tree"
    tree.mkdir()

    def run(text: str) -> Outcome:
        (tree / "train.py").write_text(SCRIPT + text)
        return launcher.run(
            LaunchRequest(
                name="ceilings",
                run_dir=tmp_path / "run",
                target=Target(TargetKind.SCRIPT, "train.py"),
                cwd=tree,
                environment=clean_environment,
                trial=TrialSpec(stop=STOP, ceilings=True),
            )
        )

    yield run
    launcher.close()


def seen(outcome: Outcome) -> CeilingsEvent:
    assert outcome.failure is None
    assert outcome.result.hook_errors == ()
    assert outcome.log is not None
    assert outcome.log.ceilings is not None
    return outcome.log.ceilings


def handed_out(outcome: Outcome) -> list[str]:
    lines = (outcome.run_dir / "output.log").read_text().splitlines()
    return [line for line in lines if line.startswith("indices")]


@pytest.mark.parametrize("text", [NEW_EACH_EPOCH, LASTING_WORKERS, ENDLESS_STREAM])
def test_each_side_runs_at_its_own_pace(launch: Launch, text: str) -> None:
    outcome = launch(text)
    event = seen(outcome)
    model, loader = outcome.result.samples_per_second, event.loader_samples_per_second
    assert (event.resident, event.detail) == (True, "")
    assert model is not None
    assert loader is not None
    workers = 2 if text == LASTING_WORKERS else 1
    # the loader's or the model's sleep is missing, and nothing else
    assert BATCH / (LOADS + COMPUTES) < model < BATCH / COMPUTES
    assert BATCH / (LOADS + COMPUTES) < loader < workers * BATCH / LOADS * 1.1
    first, kept, *rest = handed_out(outcome)
    assert first != kept
    assert set(rest) == {kept}


@pytest.mark.parametrize(
    ("text", "resident", "why"),
    [
        (ENDING_STREAM, True, "no further batches"),
        (NO_LOADER, False, "no loaders feed the training"),
        (TWO_LOADERS, True, "2 loaders feed the training"),
    ],
)
def test_what_cannot_be_measured_has_a_reason(
    launch: Launch, text: str, resident: bool, why: str
) -> None:
    event = seen(launch(text))
    assert (event.resident, event.loader_samples_per_second) == (resident, None)
    assert why in event.detail
