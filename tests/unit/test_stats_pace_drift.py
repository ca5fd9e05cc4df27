"""Drift of step times: found where it is, not where steps merely stand out or vary."""

from __future__ import annotations

import random

import pytest

from gpurun.measure.full_run import pace_drift


def noisy(levels: list[float], sd: float, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [level * draw.lognormvariate(0, sd) for level in levels]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", ["ramp", "jump"])
def test_a_run_that_slows_by_a_tenth_is_found(seed: int, shape: str) -> None:
    count = 1200
    levels = [
        10 * (1 + 0.15 * n / count if shape == "ramp" else 1.1 if n > 600 else 1.0)
        for n in range(count)
    ]
    found = pace_drift(noisy(levels, 0.05, seed))
    assert found is not None
    assert -0.13 < found.change < -0.07


def test_a_run_that_becomes_faster_drifts_too() -> None:
    found = pace_drift(noisy([12.0] * 300 + [10.0] * 300, 0.02, 1))
    assert found is not None
    assert found.change == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("sd", [0.02, 0.1, 0.3])
def test_noise_is_no_drift(sd: float) -> None:
    assert [s for s in range(200) if pace_drift(noisy([10.0] * 600, sd, s)) is not None] == []


def test_a_slower_run_within_the_threshold_is_not_worth_a_word() -> None:
    assert pace_drift([10.0] * 300 + [10.4] * 300) is None


def test_epochs_and_evaluations_are_no_drift_even_if_they_become_more() -> None:
    durations = noisy([10.0] * 1200, 0.02, 3)
    for step in range(0, 1200, 20):
        durations[step] *= 30  # the first step of an epoch waits for the loader
    for step in range(600, 1200, 5):
        durations[step] *= 100  # evaluations begin halfway
    assert pace_drift(durations) is None


def test_bursts_of_a_neighbour_are_no_drift() -> None:
    durations = noisy([10.0] * 1200, 0.05, 4)
    for begin in (150, 420, 1010):
        durations[begin : begin + 60] = [2 * x for x in durations[begin : begin + 60]]
    assert pace_drift(durations) is None


def test_a_short_run_says_nothing() -> None:
    assert pace_drift([10.0] * 100 + [20.0] * 100) is None
