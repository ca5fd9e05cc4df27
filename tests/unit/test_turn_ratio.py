from __future__ import annotations

import math
import random

import pytest

from gpurun.records.turns import Turn
from gpurun.trials.live_pair import Round
from gpurun.trials.turn_ratio import LEAST_ROUNDS, turn_ratio


def rounds(count: int, slower: float, seed: int, drift: float = 0.0) -> list[Round]:
    """Turns of two sides on a machine whose speed wanders by `drift` from round to round."""
    draws = random.Random(seed)
    speed, found = 1.0, []
    for _ in range(count):
        speed *= math.exp(draws.gauss(0, drift))
        first, second = (
            int(1e7 * speed * factor * math.exp(draws.gauss(0, 0.05))) for factor in (1, slower)
        )
        found.append(Round(Turn(5, first), Turn(5, second)))
    return found


def test_drift_that_both_sides_share_cancels() -> None:
    ratio = turn_ratio(rounds(400, slower=1.08, seed=1, drift=0.2))
    assert ratio is not None
    assert ratio.log == pytest.approx(math.log(1.08), abs=4 * ratio.error)
    assert ratio.error < 0.01


def test_equal_sides_are_within_the_error_as_often_as_it_says() -> None:
    found = [turn_ratio(rounds(160, slower=1.0, seed=seed)) for seed in range(200)]
    outside = sum(abs(one.log) > 2.13 * one.error for one in found if one is not None)
    assert outside <= 20  # 5 % of 200 are expected beyond Student's t for 15 degrees of freedom


def test_few_rounds_say_nothing() -> None:
    assert turn_ratio(rounds(LEAST_ROUNDS - 1, slower=1.0, seed=0)) is None


def test_one_disturbed_turn_in_ten_does_not_move_the_ratio() -> None:
    found = rounds(200, slower=1.0, seed=3)
    for number in range(0, 200, 10):
        found[number] = Round(found[number].first, Turn(5, 10 * found[number].second.nanoseconds))
    ratio = turn_ratio(found)
    assert ratio is not None
    assert abs(ratio.log) < 0.02
