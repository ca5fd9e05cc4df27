"""The ratio of two sides from the turns of played trainings, whatever their steps hold."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import cast

import pytest

from gpurun.pairs.side import LEAST_STEPS, Side
from gpurun.pairs.turn_ratio import LEAST_ROUNDS, Round, TurnRatio, turn_ratio
from gpurun.pairs.turn_taking import take_turns
from gpurun.records.messages.turns import Turn

Steps = Iterator[tuple[float, bool]]
"""The steps of a training that nothing interrupts: milliseconds, and whether an epoch begins."""


class PlayedTraining:
    """A side that takes its turns as `runtime/trial/live_pair_side.py` does: by the clock of its
    steps, and the first step of each turn is not counted."""

    def __init__(self, steps: Steps, fed: bool = False) -> None:
        self._steps, self._fed = steps, fed
        self._all = self._in_epoch = self._epoch_steps = 0

    def take(self, nanoseconds: int, partner: object, least_steps: int = LEAST_STEPS) -> Turn:
        counted, took, starts = -1, 0.0, 0
        while counted < least_steps or took < nanoseconds:
            milliseconds, begins = next(self._steps)
            counted += 1
            if begins and self._all:
                self._epoch_steps, self._in_epoch = self._in_epoch, 0
                starts += counted > 0
            self._all += 1
            self._in_epoch += 1
            took += 1e6 * milliseconds * (counted > 0)
        return Turn(counted, int(took), self._fed, starts, self._epoch_steps, self._all)


def rounds_of(first: PlayedTraining, second: PlayedTraining, number: int) -> list[Round]:
    """So many rounds of two trainings."""
    sides = cast(tuple[Side, Side], (first, second))
    return take_turns(sides, random.Random(0), lambda rounds: len(rounds) == number)


def ratio_of(rounds: Sequence[Round]) -> TurnRatio:
    """The ratio, which must be known."""
    found = turn_ratio(rounds)
    assert found is not None
    return found


def even(milliseconds: float, seed: int = 0) -> Steps:
    """Nothing but steps."""
    draws = random.Random(seed)
    return ((milliseconds * math.exp(draws.gauss(0, 0.02)), False) for _ in count())


def with_cost(every: int, milliseconds: float, seed: int = 1) -> Steps:
    """Steps of 10 ms; one in so many takes longer."""
    steps = enumerate(even(10.0, seed))
    return ((took + milliseconds * (n % every == 0), False) for n, (took, _) in steps)


def with_epochs(steps: int, milliseconds: float, seed: int) -> Steps:
    """The same; that step begins an epoch."""
    return (
        (took, n % steps == 0) for n, (took, _) in enumerate(with_cost(steps, milliseconds, seed))
    )


def deliveries(batches: int) -> Steps:
    """Workers that are done with so many batches at the same moment: one step waits for all."""
    return ((10.0 * batches * (n % batches == 0), False) for n in count())


def noisy(number: int, slower: float, seed: int, drift: float = 0.0) -> list[Round]:
    """Turns of two sides on a machine whose speed wanders by `drift` from round to round."""
    draws = random.Random(seed)
    speed, found = 1.0, []
    for _ in range(number):
        speed *= math.exp(draws.gauss(0, drift))
        first, second = (
            int(1e7 * speed * factor * math.exp(draws.gauss(0, 0.05))) for factor in (1, slower)
        )
        found.append(Round(Turn(5, first), Turn(5, second)))
    return found


def test_drift_that_both_sides_share_cancels() -> None:
    ratio = ratio_of(noisy(400, slower=1.08, seed=1, drift=0.2))
    assert ratio.log == pytest.approx(math.log(1.08), abs=4 * ratio.error)
    assert ratio.error < 0.02
    assert ratio.turned.log == -ratio.log


@pytest.mark.parametrize(("number", "deviations", "most"), [(160, 2.13, 0.1), (16, 2.36, 0.15)])
def test_equal_sides_are_within_the_error_about_as_often_as_it_says(
    number: int, deviations: float, most: float
) -> None:
    """Beyond Student's t for 15 and 7 degrees of freedom are 5 %."""
    found = [ratio_of(noisy(number, slower=1.0, seed=seed)) for seed in range(400)]
    assert sum(abs(one.log) > deviations * one.error for one in found) <= most * len(found)
    of_logs = math.sqrt(sum(one.log**2 for one in found) / len(found))
    assert sum(one.error for one in found) / len(found) < 1.5 * of_logs


def test_few_rounds_say_nothing() -> None:
    assert turn_ratio([]) is None
    assert turn_ratio(noisy(LEAST_ROUNDS - 1, slower=1.0, seed=0)) is None
    assert turn_ratio(noisy(LEAST_ROUNDS, slower=1.0, seed=0)) is not None


@pytest.mark.parametrize(("seconds", "least"), [(0.4, 4), (0.2, 6)])
def test_fewer_rounds_are_enough_where_turns_are_long(seconds: float, least: int) -> None:
    turn = Turn(5, int(seconds * 1e9))
    assert turn_ratio([Round(turn, turn)] * (least - 1)) is None
    assert turn_ratio([Round(turn, turn)] * least) is not None


def test_two_disturbed_turns_do_not_move_the_ratio_much() -> None:
    found = noisy(48, slower=0.76, seed=5)
    found[9] = Round(found[9].first, Turn(5, 4 * found[9].second.nanoseconds))
    found[24] = Round(Turn(5, 3 * found[24].first.nanoseconds), found[24].second)
    ratio = ratio_of(found)
    assert ratio.error < 0.06
    assert ratio.log == pytest.approx(math.log(0.76), abs=0.05)


@pytest.mark.parametrize("batches", [2, 3, 8])
def test_a_loader_whose_batches_come_in_deliveries_does_not_move_the_ratio(batches: int) -> None:
    """Where time ends turns it is a delivery that ends them, and no first step waits for one."""
    fed = PlayedTraining(deliveries(batches), fed=True)
    ratio = ratio_of(rounds_of(PlayedTraining(even(10.0)), fed, 300))
    assert ratio.log == pytest.approx(0.0, abs=0.02)
    assert ratio.error < 0.02


def test_a_stock_that_is_used_up_and_filled_again_does_not_move_the_ratio() -> None:
    """For 200 steps batches are ready, and then the training waits for 200 steps."""
    stocked = ((4.0 if n % 400 < 200 else 16.0, False) for n in count())
    sides = PlayedTraining(even(10.0)), PlayedTraining(stocked, fed=True)
    assert ratio_of(rounds_of(*sides, 400)).log == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize("every", [6, 12, 40])
def test_a_cost_that_comes_once_in_many_steps_is_in_the_ratio(every: int) -> None:
    """It adds half to the time of a mean step. Turns of six steps do not fall into step with it."""
    rare = PlayedTraining(with_cost(every, 5.0 * every))
    ratio = ratio_of(rounds_of(PlayedTraining(even(10.0)), rare, 640))
    assert ratio.log == pytest.approx(math.log(1.5), abs=0.03)


@pytest.mark.parametrize("steps", [2, 3, 7])
def test_short_epochs_are_in_the_ratio_in_their_proportion(steps: int) -> None:
    trainings = [PlayedTraining(with_epochs(steps, end, seed=steps)) for end in (6.0, 30.0)]
    ratio = ratio_of(rounds_of(trainings[0], trainings[1], 320))
    assert ratio.log == pytest.approx(math.log((10 + 30 / steps) / (10 + 6 / steps)), abs=0.03)
    assert ratio.rounds == 320
    assert ratio.epoch_ends > 100


def test_short_epochs_of_one_side_are_counted_beside_long_ones_of_the_other() -> None:
    """Steps of 0.2 s: each of its turns lasts as long as five epochs of the other side."""
    slow = PlayedTraining((200.0, n % 400 == 0) for n in count())
    ratio = ratio_of(rounds_of(PlayedTraining(with_epochs(20, 40.0, seed=1)), slow, 40))
    assert ratio.log == pytest.approx(math.log(200 / 12), abs=0.03)
    assert ratio.epoch_ends == 0, "those of the slow side are not in it"


def test_long_epochs_are_shared_out_among_their_steps() -> None:
    """One turn in some 15 holds the end of one."""
    trainings = [PlayedTraining(with_epochs(100, end, seed=3)) for end in (50.0, 350.0)]
    ratio = ratio_of(rounds_of(trainings[0], trainings[1], 200))
    assert ratio.log == pytest.approx(math.log((1000 + 350) / (1000 + 50)), abs=0.02)
    assert 6 <= ratio.epoch_ends < 20
    assert ratio.rounds < 200


@pytest.mark.parametrize(
    ("ends", "told", "log"),
    [((1, 1), 0, 0.0), ((2, 1), 0, 0.0), ((2, 2), 2, math.log(1300 / 1100))],
)
def test_two_ends_of_long_epochs_of_each_side_tell_what_they_cost_and_one_does_not(
    ends: tuple[int, int], told: int, log: float
) -> None:
    """An epoch of 1 s, and ends of 0.1 and 0.3 s."""
    usual = Turn(5, 50_000_000, epoch_steps=100)
    found = [Round(usual, usual)] * 14
    for number in range(ends[0]):
        end = replace(usual, nanoseconds=150_000_000, epoch_starts=1)
        found[3 + 4 * number] = Round(end, usual)
    for number in range(ends[1]):
        end = replace(usual, nanoseconds=350_000_000, epoch_starts=1)
        found[5 + 4 * number] = Round(usual, end)
    ratio = ratio_of(found)
    assert ratio.log == pytest.approx(log, abs=0.001)
    assert ratio.epoch_ends == told


def test_two_ends_in_one_turn_are_one_measurement_and_tell_no_error() -> None:
    usual = Turn(5, 50_000_000, epoch_steps=4)
    both = replace(usual, nanoseconds=250_000_000, epoch_starts=2)
    found = [Round(usual, usual)] * 14
    found[3], found[7] = Round(usual, both), Round(both, usual)
    assert ratio_of(found).epoch_ends == 0


def test_ends_of_long_epochs_that_save_time_are_not_clipped() -> None:
    """A last batch of few samples: the step takes 2 ms of 10."""
    usual = Turn(5, 50_000_000, epoch_steps=20)
    found = [Round(usual, usual)] * 20
    for place in (3, 9, 15):
        found[place] = Round(usual, replace(usual, nanoseconds=42_000_000, epoch_starts=1))
    for place in (5, 11, 17):
        found[place] = Round(replace(usual, epoch_starts=1), usual)
    assert ratio_of(found).log == pytest.approx(math.log(192 / 200), abs=0.001)


def test_a_disturbance_at_the_end_of_one_epoch_is_not_its_cost() -> None:
    trainings = [PlayedTraining(with_epochs(101, 50.0, seed)) for seed in (7, 8)]
    found = rounds_of(trainings[0], trainings[1], 80)
    ends = [number for number, one in enumerate(found) if one.second.epoch_starts]
    assert len(ends) >= 3
    one = found[ends[1]]
    held_up = replace(one.second, nanoseconds=one.second.nanoseconds + 10**9)
    found[ends[1]] = Round(one.first, held_up)
    ratio = ratio_of(found)
    assert ratio.epoch_ends >= 3
    assert ratio.log == pytest.approx(0.0, abs=0.02)
