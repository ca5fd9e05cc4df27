"""Tests of two samples: what chance explains, and what it does not."""

from __future__ import annotations

import random

import pytest

from gpurun.stats.two_samples import chance_of_larger, chance_of_many, chance_of_more


def test_values_of_one_distribution_are_told_apart_as_seldom_as_said() -> None:
    dice = random.Random(0)

    def values(count: int, factor: float = 1.0) -> list[float]:
        return [abs(dice.gauss(0, factor)) for _ in range(count)]

    found = sum(chance_of_larger(values(64), values(16)) < 0.05 for _ in range(1000))
    assert 25 <= found <= 80
    assert chance_of_larger(values(64, 3.0), values(64)) < 1e-4
    assert chance_of_larger(values(64), values(64, 3.0)) > 0.99


def test_counts_are_compared_as_fisher_does() -> None:
    assert chance_of_more((8, 8), (0, 8)) == pytest.approx(1 / 12870)  # 1 of 16 over 8 draws
    assert chance_of_more((0, 8), (8, 8)) == pytest.approx(1)
    assert chance_of_more((40, 64), (41, 64)) > 0.5


def test_many_of_a_part_are_as_improbable_as_a_binomial_says() -> None:
    assert chance_of_many((8, 8), 0.5) == pytest.approx(1 / 256)
    assert chance_of_many((0, 8), 0.5) == 1
    assert chance_of_many((9, 390), 0.01) > 0.01  # 2.3 % where 1 % may: of few, by chance
    assert chance_of_many((90, 3900), 0.01) < 1e-9
