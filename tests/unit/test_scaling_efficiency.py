"""Speedup and efficiency are compared within rounds, so that drift between them does not count."""

from __future__ import annotations

import pytest

from gpurun.scaling.efficiency import efficiencies


def test_drift_between_rounds_is_no_uncertainty() -> None:
    drift = {1: 1.0, 2: 0.5, 3: 2.0}
    rates = {
        1: {k: 100 * x for k, x in drift.items()},
        4: {k: 360 * x for k, x in drift.items()},
    }
    found = efficiencies(rates)[4]
    assert found.speedup == pytest.approx(3.6)
    assert found.efficiency == pytest.approx(0.9)
    assert found.interval is not None
    assert found.interval[0] > 0.89
    assert found.interval[1] < 0.91


def test_the_interval_is_students_over_rounds() -> None:
    found = efficiencies({1: {1: 100.0, 2: 100.0, 3: 100.0}, 2: {1: 180.0, 2: 200.0, 3: 190.0}})[2]
    assert found.interval is not None
    low, high = found.interval
    # sd of ln(0.9, 1, 0.95) is 0.0527; 4.303 * 0.0527 / sqrt(3) = 0.131
    assert high / found.efficiency == pytest.approx(1.140, abs=0.002)
    assert found.efficiency / low == pytest.approx(1.140, abs=0.002)


def test_the_smallest_count_is_the_reference_whichever_it_is() -> None:
    found = efficiencies({4: {1: 400.0}, 2: {1: 220.0}})
    assert found[2].efficiency == 1.0
    assert found[2].interval is None
    assert found[4].speedup == pytest.approx(400 / 220)
    assert found[4].efficiency == pytest.approx(400 / 440)
    assert found[4].interval is None  # one round


def test_a_count_without_a_round_of_its_own_has_no_figure() -> None:
    assert set(efficiencies({1: {1: 100.0}, 2: {}, 4: {2: 350.0}})) == {1}
    assert efficiencies({1: {}, 2: {}}) == {}
