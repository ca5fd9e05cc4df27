"""Model and loader, each alone in a real trial of scripts as people write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.arguments.options import Objective, Target, TargetKind
from gpurun.isolation.available_modes import require
from gpurun.measure.training_clock import samples_per_second
from gpurun.records.events import CeilingsEvent
from gpurun.records.spec import StopRule, TrialSpec
from gpurun.records.tuning import TrialPurpose
from gpurun.report.tuning_progress import outcome_text
from gpurun.runtime.trial.ceilings import LEAST_STEPS
from gpurun.trials.launch_request import LaunchRequest
from gpurun.trials.outcome import Outcome
from gpurun.trials.trial_launcher import TrialLauncher
from gpurun.tuner.trial_series import trial_of
from gpurun.tuner.tuning_trial import TrialRequest

pytestmark = pytest.mark.forked

BATCH = 4
LOADS, COMPUTES = 0.03, 0.015
"""Seconds that a batch takes at least: in the loader, and in the rest of a step."""
STOP = StopRule(min_steps=16, min_seconds=0.5, max_steps=400, warmup_steps=4, audit_steps=0)

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
for batch in DataLoader(Stream(rows[i % 48] for i in range(80)), batch_size=4):
    step(batch)
"""
INFERENCE = f"""
import gc
optimizer = None
gc.collect()
model.eval()
loader = DataLoader(Rows(), batch_size=4, shuffle=True)
with torch.inference_mode():
    while True:
        for batch in loader:
            print("indices", batch["index"].tolist(), flush=True)
            time.sleep({COMPUTES})
            model(batch["x"])
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

Launch = Callable[..., Outcome]


@pytest.fixture
def launch(tmp_path: Path, clean_environment: dict[str, str]) -> Iterator[Launch]:
    mode, _ = require(tmp_path, in_place=False)
    launcher = TrialLauncher(tmp_path / "launches", mode)
    tree = tmp_path / "tree"
    tree.mkdir()

    def run(text: str, stop: StopRule = STOP) -> Outcome:
        (tree / "train.py").write_text(SCRIPT + text)
        return launcher.run(
            LaunchRequest(
                name="ceilings",
                run_dir=tmp_path / "run",
                target=Target(TargetKind.SCRIPT, "train.py"),
                cwd=tree,
                environment=clean_environment,
                trial=TrialSpec(stop=stop, ceilings=True),
                training_loaders=(f"train.py:{line_of_loader(SCRIPT + text)}#0",),
            )
        )

    yield run
    launcher.close()


def line_of_loader(text: str) -> int:
    """Of the last one; 0 where there is none."""
    return max(
        (n for n, line in enumerate(text.splitlines(), 1) if "DataLoader(" in line), default=0
    )


def seen(outcome: Outcome) -> CeilingsEvent:
    assert outcome.failure is None
    assert outcome.result.hook_errors == ()
    assert outcome.log is not None
    assert outcome.log.ceilings is not None
    return outcome.log.ceilings


def handed_out(outcome: Outcome) -> list[str]:
    lines = (outcome.run_dir / "output.log").read_text().splitlines()
    return [line for line in lines if line.startswith("indices")]


@pytest.mark.parametrize(
    "text",
    [
        NEW_EACH_EPOCH,
        pytest.param(LASTING_WORKERS, marks=pytest.mark.slow),
        pytest.param(INFERENCE, marks=pytest.mark.slow),
        pytest.param(ENDLESS_STREAM, marks=pytest.mark.slow),
    ],
)
def test_each_side_runs_at_its_own_pace(launch: Launch, text: str) -> None:
    outcome = launch(text)
    event = seen(outcome)
    assert outcome.log is not None
    script = samples_per_second(outcome.log, event.script_ns)
    model = samples_per_second(outcome.log, event.model_ns)
    loader = event.loader_samples_per_second
    assert event.detail == ""
    assert script is not None
    assert model is not None
    assert loader is not None
    if text == LASTING_WORKERS:  # two of them load while the model computes
        assert script < model < BATCH / COMPUTES
        assert loader < 2 * BATCH / LOADS * 1.1
    else:  # sleeps do not overlap: each side's own is missing, and nothing else
        assert script < BATCH / (LOADS + COMPUTES)
        assert script < model < BATCH / COMPUTES
        assert script < loader < BATCH / LOADS
    batches = handed_out(outcome)
    assert len(set(batches[:8])) == 8
    assert len(set(batches[-LEAST_STEPS:])) == 1


@pytest.mark.slow  # quick twin: each side at its own pace, above
def test_a_script_that_evaluates_first_is_measured_while_it_trains(launch: Launch) -> None:
    evaluation = """
with torch.no_grad():
    for _ in range(30):
        model(torch.randn(4, 8))
"""
    outcome = launch(evaluation + NEW_EACH_EPOCH)
    event = seen(outcome)
    assert outcome.log is not None
    script = samples_per_second(outcome.log, event.script_ns)
    assert script is not None
    assert script < BATCH / (LOADS + COMPUTES)


FIXED_LENGTH = """
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=24)
for epoch in range(2):
    for batch in DataLoader(Rows(), batch_size=4, shuffle=True):
        step(batch)
        schedule.step()
"""


@pytest.mark.slow  # quick twin: unit/test_tuner_ceiling_trial.py
def test_a_schedule_of_fixed_length_is_never_stepped_beyond_its_end(launch: Launch) -> None:
    """Batches that are repeated are more than the script has; it raises then by their fault."""
    too_many = launch(FIXED_LENGTH)
    assert too_many.failure is not None
    request = TrialRequest(TrialPurpose.CEILINGS, {}, STOP, ceilings=True)
    record = trial_of(1, too_many.run_dir, request, too_many, Objective.THROUGHPUT).record
    assert "ValueError" in too_many.failure.text
    assert "repeats one batch" in outcome_text(record)
    assert "Error" not in outcome_text(record)


@pytest.mark.slow  # quick twin: unit/test_tuner_ceiling_trial.py
def test_the_trial_ends_with_the_last_step_of_the_script(launch: Launch) -> None:
    outcome = launch(FIXED_LENGTH, replace(STOP, max_steps=24))
    event = seen(outcome)
    assert outcome.log is not None
    assert outcome.log.stop is not None
    assert (outcome.log.stop.reason, outcome.log.stop.steps) == ("max_steps", 24)
    assert event.model_ns is None


@pytest.mark.parametrize(
    ("text", "model", "why"),
    [
        (ENDING_STREAM, True, "no further batches"),
        pytest.param(NO_LOADER, False, "no loaders feed the training", marks=pytest.mark.slow),
        pytest.param(TWO_LOADERS, True, "2 loaders feed the training", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_measured_has_a_reason(
    launch: Launch, text: str, model: bool, why: str
) -> None:
    event = seen(launch(text))
    assert (event.model_ns is not None, event.loader_samples_per_second) == (model, None)
    assert event.script_ns is not None
    assert why in event.detail
