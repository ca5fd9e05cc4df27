"""Turns of several numbers of loader workers: who loads, in what order, and when they end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as Workers

from gpurun.knobs.loading.added_workers import MarkedInt
from gpurun.records.events import WorkerTurnEvent
from gpurun.records.spec import StopRule, WorkerTurnPlan
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe.torch_loader_internals import WORKERS
from gpurun.runtime.trial.worker_turns import ActiveWorkers, WorkerTurns

RULE = StopRule(min_steps=10, min_seconds=1.0, max_steps=100_000, warmup_steps=4, audit_steps=0)
MS = 1_000_000


class WhoLoads(Dataset[tuple[int, int]]):
    """Each item is its index and the number of the worker that loads it."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[int, int]:
        worker = get_worker_info()
        assert worker is not None
        return index, int(worker.id)


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> ActiveWorkers:
    monkeypatch.setattr(Workers, "_try_put_index", Workers._try_put_index)
    workers = ActiveWorkers(1)
    workers.install()
    return workers


def loader(workers: int, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(
        WhoLoads(), batch_size=2, num_workers=workers, persistent_workers=True, **arguments
    )


@pytest.mark.parametrize("arguments", [{}, {"prefetch_factor": 4}])
def test_batches_keep_their_order_while_workers_are_added_and_parked(
    active: ActiveWorkers, arguments: dict[str, Any]
) -> None:
    loading = loader(MarkedInt(4), **arguments)
    numbers = [1] * 8 + [4] * 8 + [2] * 8 + [3] * 6
    for _ in range(2):  # the workers live on
        active.count, seen, loaded_by = numbers[0], [], []
        for number, (indices, who) in zip(numbers, loading, strict=True):
            seen += indices.tolist()
            loaded_by.append(who[0].item())
            active.count = number
        assert seen == list(range(60))
        assert set(loaded_by[:8]) == {0}
        assert set(loaded_by) == {0, 1, 2, 3}
    assert active.handed_out == 60


def test_no_more_is_read_ahead_than_with_a_loader_of_so_many_workers(
    active: ActiveWorkers,
) -> None:
    reading: Any = iter(loader(MarkedInt(4)))
    ahead = []
    for number in (1, 1, 4, 4, 2, 2, 2, 2, 2, 2, 2):
        active.count = number
        next(reading)
        ahead.append(len(reading._task_info))
    assert ahead == [2, 2, 8, 8, 7, 6, 5, 4, 4, 4, 4]


def test_a_loader_without_added_workers_is_left_alone(active: ActiveWorkers) -> None:
    reading: Any = iter(loader(3))
    assert {next(reading)[1][0].item() for _ in range(9)} == {0, 1, 2}
    assert active.handed_out == 0


class Training:
    """A training whose loader makes so many batches a second with each number of workers."""

    def __init__(self, rates: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns: list[WorkerTurnEvent] = []
        self.rates = rates
        self.steps, self.ns = 0, 0
        monkeypatch.setattr(RECORDER, "event", self.turns.append)

    def run(self, plan: WorkerTurnPlan, each: Callable[[int], None] = lambda step: None) -> str:
        taking = WorkerTurns(RULE, plan)
        while True:
            self.steps += 1
            taking._workers.handed_out += 1
            self.ns += round(1e9 / self.rates[taking._workers.count])
            each(self.steps)
            why = taking.enough(self.steps, self.ns)
            if why is not None:
                return why

    @property
    def numbers(self) -> list[int]:
        return [turn.workers for turn in self.turns]


def plan(numbers: tuple[int, ...] = (1, 2, 4, 8, 16, 32), **changes: Any) -> WorkerTurnPlan:
    return WorkerTurnPlan(numbers, (None,) * len(numbers), changes.pop("seconds", 60.0), **changes)


def test_no_more_workers_are_tried_than_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training({1: 50, 2: 98, 4: 99, 8: 99, 16: 90}, monkeypatch)
    assert training.run(plan()) == "enough"
    assert training.numbers[:4] == [1, 2, 4, 8]
    assert sorted(training.numbers) == [1, 1, 2, 2, 4, 4, 8, 8]


def test_turns_that_disagree_are_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {1: 20.0, 2: 98.0, 4: 100.0}
    training = Training(rates, monkeypatch)

    def drift(step: int) -> None:
        rates[4] = 100.0 + 8.0 * (len(training.turns) % 2)

    assert training.run(plan((1, 2, 4)), drift) == "enough"
    assert training.numbers.count(4) > 2
    assert training.ns < 60e9, "until their mean is known"


def test_a_turn_counts_from_where_the_batches_of_earlier_workers_are_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training({1: 100.0, 2: 100.0, 4: 100.0}, monkeypatch)
    training.run(plan((1, 2, 4)))
    between = [b.begin_ns - a.end_ns for a, b in pairwise(training.turns)]
    for (a, b), ns in zip(pairwise(training.numbers), between, strict=True):
        assert ns >= (2 * a + (2 * b if a > b else b)) * 10 * MS


def test_the_time_for_all_turns_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training({1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0, 16: 16.0, 32: 32.0}, monkeypatch)
    assert training.run(plan(seconds=20.0)) == "enough"
    assert training.ns < 27e9
    assert training.numbers[:4] == [1, 2, 4, 8]
    assert len(set(training.numbers)) == len(training.numbers), "it was over in the first round"


def test_a_turn_has_whole_epochs_where_they_are_short_else_no_start_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def epochs(step: int) -> None:
        if step % 25 == 0:
            monkeypatch.setattr(WORKERS, "passes", WORKERS.passes + 1)

    training = Training({1: 100.0, 2: 200.0}, monkeypatch)
    training.run(plan((1, 2), epoch_steps=25), epochs)
    for turn in training.turns:
        steps = (turn.end_ns - turn.begin_ns) / 1e9 * training.rates[turn.workers]
        assert round(steps) % 25 == 0
    training = Training({1: 100.0, 2: 100.0}, monkeypatch)
    assert training.run(plan((1, 2), seconds=5.0), epochs) == "enough"
    assert training.turns == [], "30 steps do not fit into an epoch"
