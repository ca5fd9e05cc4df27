"""Several numbers of loader workers, measured in turns of one real launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpurun.arguments.options import Target, TargetKind
from gpurun.isolation.available_modes import require
from gpurun.knobs.loading.loader_need import worker_rates
from gpurun.measure.run_events import ProcessLog
from gpurun.measure.training_clock import samples_per_second
from gpurun.records.facts import WorkerRate
from gpurun.records.spec import Setting, StopRule, TrialSpec, WorkerTurnPlan
from gpurun.trials.launch_request import LaunchRequest
from gpurun.trials.outcome import Outcome
from gpurun.trials.trial_launcher import TrialLauncher

pytestmark = pytest.mark.forked

SLEEPS = 0.01
"""Seconds of a sample."""
STOP = StopRule(min_steps=16, min_seconds=0.5, max_steps=5000, warmup_steps=4, audit_steps=0)
SCRIPT = f"""
import time, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
torch.set_num_threads(1)
torch.manual_seed(0)

class Rows(Dataset):
    def __len__(self):
        return 40_000
    def __getitem__(self, index):
        time.sleep({SLEEPS})
        return torch.full((8,), index / 40_000), index

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, indices in DataLoader(Rows(), batch_size=4, shuffle=True):
    print("indices", indices.tolist(), flush=True)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
LINE = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if "in DataLoader(" in line)

Launch = Callable[[str, TrialSpec, tuple[Setting, ...]], Outcome]


@pytest.fixture
def launch(tmp_path: Path, clean_environment: dict[str, str]) -> Iterator[Launch]:
    mode, _ = require(tmp_path, in_place=False)
    launcher = TrialLauncher(tmp_path / "launches", mode)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_text(SCRIPT)

    def run(name: str, trial: TrialSpec, settings: tuple[Setting, ...]) -> Outcome:
        return launcher.run(
            LaunchRequest(
                name=name,
                run_dir=tmp_path / name,
                target=Target(TargetKind.SCRIPT, "train.py"),
                cwd=tree,
                environment=clean_environment,
                trial=trial,
                settings=settings,
                training_loaders=(f"train.py:{LINE}#0",),
            )
        )

    yield run
    launcher.close()


def rates_of(log: ProcessLog) -> tuple[WorkerRate, ...]:
    turns: dict[int, list[float]] = {}
    for turn in log.worker_turns:
        rate = samples_per_second(log, (turn.begin_ns, turn.end_ns))
        assert rate is not None
        turns.setdefault(turn.workers, []).append(rate)
    assert all(len(seen) >= 2 for seen in turns.values()), turns
    return worker_rates(turns)


def handed_out(outcome: Outcome) -> list[str]:
    lines = (outcome.run_dir / "output.log").read_text().splitlines()
    return [line for line in lines if line.startswith("indices")]


def test_one_launch_measures_each_number_and_sees_the_samples_in_their_order(
    launch: Launch,
) -> None:
    plan = WorkerTurnPlan((1, 2, 4), (1, 1, 1), seconds=60.0)
    outcome = launch("turns", TrialSpec(STOP, worker_turns=plan), (Setting("loader_workers", 4),))
    assert outcome.failure is None
    assert outcome.result.hook_errors == ()
    assert outcome.log is not None
    one, two, four = rates_of(outcome.log)
    assert [rate.workers for rate in (one, two, four)] == [1, 2, 4]
    assert one.samples_per_second < 1 / SLEEPS
    assert one.samples_per_second < two.samples_per_second < 2 / SLEEPS
    assert two.samples_per_second < four.samples_per_second < 4 / SLEEPS
    plain = launch("plain", TrialSpec(STOP), ())
    first = handed_out(plain)
    assert len(first) >= STOP.min_steps
    assert handed_out(outcome)[: len(first)] == first
