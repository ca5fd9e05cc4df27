"""Turns of a process whose steps and clock are played; and the workers of a real loader."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gpurun.records.messages.traits import place
from gpurun.records.messages.turns import ANSWERS, ORDERS, Turn, TurnOrder
from gpurun.runtime.observe.step_clock import LoaderState, StepClock
from gpurun.runtime.observe.torch_loader_internals import LoaderIterator, WorkerProcesses, send
from gpurun.runtime.trial import live_pair_side as turns_module
from gpurun.runtime.trial.live_pair_side import Turns
from gpurun.trials.turn_fifos import make_fifos
from tests.integration.launched import wait_for
from tests.integration.live_sides import state

MILLISECOND = 1_000_000


class Launcher:
    """Gives the orders of all turns ahead of time, and reads the answers."""

    def __init__(self, control: Path, orders: int, nanoseconds: int) -> None:
        make_fifos(control)
        self._answers = os.open(control / ANSWERS, os.O_RDWR)
        ahead = os.open(control / ORDERS, os.O_RDWR)  # kept open: it holds what was not read yet
        for _ in range(orders):
            os.write(ahead, TurnOrder(nanoseconds, 5).line())
        os.write(ahead, TurnOrder(0, 0).line())

    def answers(self) -> list[Turn]:
        """All so far; the first says only that the side is ready."""
        found = []
        while select.select([self._answers], [], [], 0)[0]:
            found += os.read(self._answers, 1 << 16).splitlines(keepends=True)
        return [Turn.read(line) for line in found]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time of the played process, in nanoseconds."""
    clock = SimpleNamespace(time=0)
    monkeypatch.setattr(turns_module, "now", lambda: clock.time)
    return clock


ORDERED_MS = 15
"""What a turn of `train` is asked to last, unless the test says."""
Step = Callable[[int, WorkerProcesses], int]
"""Plays a step by its number, from 0 on: it begins epochs, and gives the step's milliseconds."""


def train(
    folder: Path,
    clock: SimpleNamespace,
    step: Step,
    turns: int = 8,
    ordered_ms: int = ORDERED_MS,
    workers: WorkerProcesses | None = None,
) -> list[Turn]:
    """Take so many turns, the first after the step of number 0."""
    launcher = Launcher(folder / "control", turns, ordered_ms * MILLISECOND)
    workers = workers or WorkerProcesses()
    side = Turns(folder / "control", 1, workers)
    count = 0
    while True:
        clock.time += step(count, workers) * MILLISECOND
        count += 1
        if side.after_step(count):
            return launcher.answers()[1:]


def test_the_first_answer_comes_after_the_steps_that_are_asked_for_and_counts_none(
    tmp_path: Path,
) -> None:
    launcher = Launcher(tmp_path, 1, 0)
    side = Turns(tmp_path, 3)
    assert [side.after_step(count) for count in (1, 2)] == [False, False]
    assert launcher.answers() == []
    assert not side.after_step(3)
    assert launcher.answers() == [Turn(0, 0)]


def test_a_turn_counts_from_the_end_of_its_first_step(
    tmp_path: Path, clock: SimpleNamespace
) -> None:
    """That one takes 100 ms, and the five steps after it 4 ms each."""
    found = train(tmp_path, clock, lambda number, _: 100 if number % 6 == 1 else 4)
    assert [(turn.steps, turn.nanoseconds) for turn in found] == [(5, 20 * MILLISECOND)] * 8
    assert [turn.all_steps for turn in found] == [1 + 6 * (n + 1) for n in range(8)]


@pytest.mark.parametrize(("ordered_ms", "steps"), [(15, 5), (40, 5), (41, 6), (100, 13)])
def test_a_turn_lasts_as_long_and_for_as_many_steps_as_ordered(
    tmp_path: Path, clock: SimpleNamespace, ordered_ms: int, steps: int
) -> None:
    found = train(tmp_path, clock, lambda *_: 8, ordered_ms=ordered_ms)
    assert {(turn.steps, turn.nanoseconds) for turn in found} == {(steps, 8 * steps * MILLISECOND)}


@pytest.mark.parametrize("epoch", [2, 12, 100])
def test_a_turn_tells_of_the_epochs_whose_beginnings_are_in_its_time(
    tmp_path: Path, clock: SimpleNamespace, epoch: int
) -> None:
    """The first step of an epoch takes 192 ms longer: workers start anew."""

    def step(number: int, workers: WorkerProcesses) -> int:
        workers.passes = number // epoch
        return 200 if number % epoch == 0 else 8

    found = train(tmp_path, clock, step, turns=80)
    of_starts = [turn.nanoseconds // MILLISECOND - 8 * turn.steps for turn in found]
    assert of_starts == [192 * turn.epoch_starts for turn in found]
    assert sum(turn.epoch_starts for turn in found) >= 2
    assert found[-1].epoch_steps == epoch
    assert {turn.epoch_steps for turn in found} <= {0, epoch}


def test_two_loaders_that_begin_with_the_same_step_are_one_epoch(
    tmp_path: Path, clock: SimpleNamespace
) -> None:
    def step(number: int, workers: WorkerProcesses) -> int:
        workers.passes = 2 * (number // 100)
        return 8

    found = train(tmp_path, clock, step, turns=60)
    assert {turn.epoch_starts for turn in found} == {0, 1}
    assert found[-1].epoch_steps == 100


def test_a_process_that_the_training_forks_takes_no_turns(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, 1, 0)
    side = Turns(tmp_path, 1)
    child = os.fork()
    if child == 0:
        side.after_step(1)
        os._exit(0)
    os.waitpid(child, 0)
    assert launcher.answers() == []
    side.after_step(1)
    assert launcher.answers() == [Turn(0, 0)]


def two_workers() -> Any:
    """An iterator whose workers are alive."""
    return iter(DataLoader(TensorDataset(torch.zeros(64)), batch_size=1, num_workers=2))


def test_a_side_is_fed_while_a_loader_with_workers_is_alive(
    tmp_path: Path, clock: SimpleNamespace
) -> None:
    workers = WorkerProcesses()
    workers.opened(cast(LoaderIterator, iter(DataLoader(TensorDataset(torch.zeros(4))))), False)
    feeding = [two_workers()]

    def step(number: int, workers: WorkerProcesses) -> int:
        if number == 10:
            workers.opened(feeding[0], trained=False)
        if number == 30:
            feeding.clear()
        return 8

    found = train(tmp_path, clock, step, workers=workers)  # each turn has six steps
    assert [turn.fed for turn in found] == [False, *[True] * 3, *[False] * 4]


def test_workers_stand_still_from_the_end_of_a_turn_to_the_next_order(tmp_path: Path) -> None:
    workers, iterator = WorkerProcesses(), two_workers()
    workers.opened(iterator, trained=False)
    pids = [worker.pid for worker in iterator._workers]
    make_fifos(tmp_path)
    answers, orders = (os.open(tmp_path / name, os.O_RDWR) for name in (ANSWERS, ORDERS))

    def stand_still() -> list[bool]:
        """Whether they do at each answer; orders one turn, and then the end."""
        found = []
        for order in (TurnOrder(0, 1), TurnOrder(0, 0)):
            os.read(answers, 1 << 16)
            found.append(wait_for(lambda: all(state(pid) == "T" for pid in pids), 10))
            os.write(orders, order.line())
        return found

    def go_on() -> bool:
        return wait_for(lambda: all(state(pid) != "T" for pid in pids), 10)

    side = Turns(tmp_path, 1, workers)
    with ThreadPoolExecutor(1) as pool:
        launcher = pool.submit(stand_still)
        assert not side.after_step(1)
        assert go_on()
        assert not side.after_step(2), "from here on it counts"
        assert go_on()
        assert side.after_step(3)
        assert launcher.result() == [True, True]
    assert go_on()
    assert len(list(iterator)) == 64


def test_workers_whose_pass_is_over_are_not_stopped() -> None:
    workers, iterator = WorkerProcesses(), two_workers()
    workers.opened(iterator, trained=False)
    pids = workers.stop()
    send(pids, signal.SIGCONT)
    assert len(pids) == 2
    assert len(list(iterator)) == 64
    del iterator
    assert not workers.any
    assert workers.stop() == []


def test_a_loader_that_trained_begins_an_epoch_also_where_it_is_built_anew() -> None:
    workers, clock = WorkerProcesses(), StepClock()

    def read(key: str, trains: bool) -> None:
        workers.opened(cast(LoaderIterator, object()), place(key) in clock.trained_places)
        if trains:
            clock.batch(LoaderState(0, key), 0, 1)
            clock.backward(0, None)

    for epoch in range(3):
        read(f"train.py:1#{epoch}", trains=True)
        read("evaluate.py:1#0", trains=False)
    assert workers.passes == 2


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
    (turn,) = train(tmp_path, clock, lambda step, workers: 4, turns=1, ordered_ms=15)
    assert PlayedEvent.streams == streams
    assert (turn.steps, turn.nanoseconds) == (5, turn_ns)
    assert set(drained) == ({0, 1} if all(allocated) else {int(allocated[1] > 0)})
