"""Turns of a process whose loaders and clock are played; and the stock of a real loader."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import ClassVar, cast

import pytest
import torch
from gpurun.runtime.observe.prefetched_batches import EMPTY, PrefetchedBatches, PrefetchLevel, send
from torch.utils.data import DataLoader, TensorDataset

from gpurun.pairs.side import make_fifos
from gpurun.records.messages.loader_keys import place
from gpurun.records.messages.turns import ANSWERS, ORDERS, Turn, TurnOrder
from gpurun.runtime.observe.step_clock import LoaderState, StepClock
from gpurun.runtime.observe.torch_loader_internals import LoaderIterator
from gpurun.runtime.trial import live_pair_side as turns_module
from gpurun.runtime.trial.live_pair_side import Turns
from tests.integration.launched import wait_for
from tests.integration.live_sides import state

MILLISECOND = 1_000_000


class PlayedStock(PrefetchedBatches):
    """A stock whose level the test sets. Nobody is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.now = EMPTY

    def level(self) -> PrefetchLevel:
        return self.now


class Launcher:
    """Gives the orders of all turns ahead of time, and reads the answers."""

    def __init__(
        self, control: Path, orders: int, nanoseconds: int, whole_epochs: bool = False
    ) -> None:
        make_fifos(control)
        self._answers = os.open(control / ANSWERS, os.O_RDWR)
        ahead = os.open(control / ORDERS, os.O_RDWR)  # kept open: it holds what was not read yet
        for _ in range(orders):
            os.write(ahead, TurnOrder(nanoseconds, 5, whole_epochs).line())
        os.write(ahead, TurnOrder(0, 0).line())

    def answers(self) -> list[Turn]:
        text = os.read(self._answers, 1 << 16)
        return [Turn.read(line) for line in text.splitlines(keepends=True)][1:]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time of the played process, in nanoseconds."""
    clock = SimpleNamespace(time=0)
    monkeypatch.setattr(turns_module, "now", lambda: clock.time)
    return clock


ORDERED_MS = 15
"""What a turn of `train` is asked to last, unless the test says."""


def train(
    folder: Path,
    clock: SimpleNamespace,
    step: Callable[[int, PlayedStock], int],
    turns: int = 8,
    whole_epochs: bool = False,
    ordered_ms: int = ORDERED_MS,
) -> list[Turn]:
    """Take so many turns; `step` plays one: it sets the stock and gives the step's milliseconds."""
    launcher = Launcher(folder / "control", turns, ordered_ms * MILLISECOND, whole_epochs)
    stock = PlayedStock()
    side = Turns(folder / "control", 1, stock)
    count = 0
    while True:
        clock.time += step(count, stock) * MILLISECOND
        count += 1
        if side.after_step(count):
            return launcher.answers()


def test_a_turn_counts_whole_epochs_where_it_is_told_to(
    tmp_path: Path, clock: SimpleNamespace
) -> None:
    def step(number: int, stock: PlayedStock) -> int:
        stock.passes = number // 12
        return 63 if number % 12 == 0 else 3  # an epoch of 96 ms

    found = train(tmp_path, clock, step, whole_epochs=True)[1:]  # the first sees their length
    assert [turn.whole_epochs for turn in found] == [True] * 7
    assert {turn.steps for turn in found} == {12}
    assert {turn.step_seconds for turn in found} == {0.008}


def test_a_turn_that_is_longer_than_several_epochs_still_counts_whole_ones(
    tmp_path: Path, clock: SimpleNamespace
) -> None:
    def step(number: int, stock: PlayedStock) -> int:
        stock.passes = number // 12
        return 8

    found = train(tmp_path, clock, step, whole_epochs=True, ordered_ms=300)[1:]
    assert [turn.whole_epochs for turn in found] == [True] * 7
    assert {turn.steps % 12 for turn in found} == {0}


def test_two_loaders_that_begin_with_the_same_step_are_one_epoch(
    tmp_path: Path, clock: SimpleNamespace
) -> None:
    def step(number: int, stock: PlayedStock) -> int:
        stock.passes = 2 * (number // 100)
        return 8

    found = train(tmp_path, clock, step, turns=60)
    assert sum(turn.epoch_starts for turn in found) == len([t for t in found if t.epoch_starts])


def test_the_start_of_a_long_epoch_is_told_apart(tmp_path: Path, clock: SimpleNamespace) -> None:
    def step(number: int, stock: PlayedStock) -> int:
        stock.passes = number // 100
        return 200 if number % 100 == 0 else 8  # an epoch of 992 ms

    found = train(tmp_path, clock, step, turns=60)
    ends = [turn for turn in found if turn.at_epoch_end]
    assert sum(turn.epoch_starts for turn in ends) == len(ends) >= 2
    assert {turn.epoch_steps for turn in ends[1:]} == {100}
    assert {turn.step_seconds for turn in found if not turn.at_epoch_end} == {0.008}


def test_a_turn_of_workers_that_deliver_at_once_counts_whole_deliveries(
    tmp_path: Path, clock: SimpleNamespace
) -> None:
    """Eight workers need 80 ms for a batch, and all are done at the same moment."""

    def step(number: int, stock: PlayedStock) -> int:
        stock.now = PrefetchLevel(taken=number, ready=7 - number % 8, workers=8, ending=False)
        return 80 if number % 8 == 0 else 0

    assert {turn.step_seconds for turn in train(tmp_path, clock, step)} == {0.01}


def test_a_turn_does_not_wait_for_its_first_stock_where_the_workers_keep_their_lead(
    tmp_path: Path, clock: SimpleNamespace
) -> None:
    """Of 16 batches asked for, 13 to 15 are ready at any step."""

    def step(number: int, stock: PlayedStock) -> int:
        stock.now = PrefetchLevel(number, 13 + number % 3, 8, ending=False, ahead=True)
        return 10

    found = train(tmp_path, clock, step)[1:]  # in the first the stock settles
    assert {turn.steps for turn in found} <= {5, 6, 7}
    assert {turn.stocked for turn in found} == {0}


def test_a_lead_that_shrinks_is_told(tmp_path: Path, clock: SimpleNamespace) -> None:
    """Workers that make four batches while the training uses five."""

    def step(number: int, stock: PlayedStock) -> int:
        stock.now = PrefetchLevel(number, 200 - number // 5, 8, ending=False, ahead=True)
        return 10

    found = train(tmp_path, clock, step)[2:]
    batches = sum(turn.batches for turn in found)
    assert 1 + sum(turn.stocked for turn in found) / batches == pytest.approx(0.8, abs=0.05)


def test_what_was_made_while_the_side_was_frozen_is_used_up_first(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step waits 10 ms for its batch; after each hand-over four batches are there at once."""
    left = 0

    def frozen(_: PrefetchedBatches) -> list[int]:
        nonlocal left
        left = 4
        return []

    def step(number: int, stock: PlayedStock) -> int:
        nonlocal left
        took, left = (0, left - 1) if left else (10, 0)
        stock.now = PrefetchLevel(taken=number, ready=left, workers=4, ending=False)
        return took

    monkeypatch.setattr(PlayedStock, "stop_workers", frozen)
    assert {turn.step_seconds for turn in train(tmp_path, clock, step)} == {0.01}


def test_a_stock_that_is_used_up_is_told(tmp_path: Path, clock: SimpleNamespace) -> None:
    def step(number: int, stock: PlayedStock) -> int:
        stock.now = PrefetchLevel(number, 1000 - number, 20, ending=False)
        return 4

    first = train(tmp_path, clock, step, turns=1)[0]
    assert first.stocked == -first.batches < 0


@pytest.mark.parametrize(("next_one", "ahead"), [((0, "batch"), True), ((0,), False)])
def test_workers_are_not_ahead_while_the_next_batch_is_the_late_one(
    next_one: tuple[object, ...], ahead: bool
) -> None:
    others = {number: (number % 2, "batch") for number in (5, 6, 7)}

    class Iterator(SimpleNamespace):
        """Other than its base it can be referred to weakly."""

    iterator = Iterator(
        _task_info={4: next_one, **others}, _data_queue=Queue(), _worker_result_queue=Queue(),
        _rcvd_idx=4, _num_workers=2, _prefetch_factor=2, _workers=(),
    )  # fmt: skip
    stock = PrefetchedBatches()
    stock.opened(cast(LoaderIterator, iterator), trained=False)
    assert stock.level().ahead is ahead


def test_the_stock_of_a_real_loader_is_seen_and_its_workers_stop() -> None:
    stock = PrefetchedBatches()
    loader = DataLoader(TensorDataset(torch.zeros(64)), batch_size=1, num_workers=2)
    iterator = iter(loader)
    stock.opened(iterator, trained=False)
    assert wait_for(lambda: stock.level() == PrefetchLevel(0, 4, 2, ending=False, ahead=True), 60)
    next(iterator)
    pids = stock.stop_workers()
    try:
        assert len(pids) == 2
        assert wait_for(lambda: all(state(pid) == "T" for pid in pids), 10)
    finally:
        send(pids, signal.SIGCONT)
    for _ in range(61):
        next(iterator)
    level = stock.level()
    assert level.taken == 62
    assert level.ending
    assert len(list(iterator)) == 2
    assert stock.level() == EMPTY


def test_a_loader_that_trained_begins_an_epoch_also_where_it_is_built_anew() -> None:
    stock, clock = PrefetchedBatches(), StepClock()

    def read(key: str, trains: bool) -> None:
        stock.opened(cast(LoaderIterator, object()), place(key) in clock.trained_places)
        if trains:
            clock.batch(LoaderState(0, key), 0, 1)
            clock.backward(0, None)

    for epoch in range(3):
        read(f"train.py:1#{epoch}", trains=True)
        read("evaluate.py:1#0", trains=False)
    assert stock.passes == 2


def test_what_was_read_before_anything_trained_begins_no_epoch() -> None:
    clock = StepClock()
    clock.inference_batch(LoaderState(0, "evaluate.py:1#0"), 0, 8)
    clock.forward(0, root=1, samples=8, tokens=0, training=False)
    assert clock.trained_places == {"evaluate.py:1"}
    clock.inference_batch(LoaderState(0, "evaluate.py:1#0"), 0, 8)
    clock.backward(0, None)
    assert clock.trained_places == set()
    assert not clock._inferred, "data sets that were read must not be kept alive"


class PlayedEvent:
    """A mark that says on which stream it was set."""

    streams: ClassVar[list[str]] = []

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.device = ""

    def record(self, stream: str) -> None:
        self.device = stream
        self.streams.append(stream)

    def elapsed_time(self, later: PlayedEvent) -> float:
        return 40.0


@pytest.mark.parametrize(
    ("allocated", "streams", "turn_ns"),
    [
        ((0, 5), ["stream of 1"] * 2, 40 * MILLISECOND),
        ((5, 0), ["stream of 0"] * 2, 40 * MILLISECOND),
        ((0, 0), ["stream of 0"] * 2, 40 * MILLISECOND),  # what torch did not allocate
        ((5, 5), [], 21 * MILLISECOND),  # five steps and the drain that ends them
    ],
)
def test_gpus_that_hold_tensors_are_timed_and_drained_whichever_is_current(
    tmp_path: Path,
    clock: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    allocated: tuple[int, int],
    streams: list[str],
    turn_ns: int,
) -> None:
    drained: list[int] = []

    def synchronize(gpu: int) -> None:
        drained.append(gpu)
        clock.time += MILLISECOND // 2

    monkeypatch.setattr(PlayedEvent, "streams", [])
    for name, played in {
        "is_initialized": lambda: True,
        "device_count": lambda: 2,
        "current_device": lambda: 0,
        "memory_allocated": lambda gpu: allocated[gpu],
        "current_stream": lambda gpu: f"stream of {gpu}",
        "synchronize": synchronize,
        "Event": PlayedEvent,
    }.items():
        monkeypatch.setattr(torch.cuda, name, played)
    (turn,) = train(tmp_path, clock, lambda step, stock: 4, turns=1, ordered_ms=15)
    assert PlayedEvent.streams == streams
    assert (turn.steps, turn.nanoseconds) == (5, turn_ns)
    assert set(drained) == ({0, 1} if all(allocated) else {int(allocated[1] > 0)})
