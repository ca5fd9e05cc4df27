"""Warm-up is left out and nothing else: shapes of start seen in the field, made up with a seed."""

from __future__ import annotations

import random

import pytest

from gpurun.measure.measured_window import warmup_steps


def noisy(count: int, level: float = 10.0, noise: float = 0.02, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [level * rng.gauss(1, noise) for _ in range(count)]


@pytest.mark.parametrize(("count", "out"), [(0, 0), (1, 0), (2, 1), (5, 1), (6, 2), (500, 2)])
def test_a_constant_trace_loses_the_least(count: int, out: int) -> None:
    assert warmup_steps([10.0] * count) == out


@pytest.mark.parametrize("seed", range(20))
def test_a_steady_noisy_trace_loses_little(seed: int) -> None:
    assert warmup_steps(noisy(200, noise=0.1, seed=seed)) <= 10


def test_compilation_at_the_first_steps_is_left_out() -> None:
    assert warmup_steps([9000.0, 10.5, 4000.0, *noisy(97)]) == 3


def test_compilation_again_at_the_partial_last_batch_stays_in_the_window() -> None:
    trace = [9000.0, *noisy(99)]
    trace[39] = trace[79] = 5000.0
    assert warmup_steps(trace) == 2


def test_an_evaluation_pass_in_the_first_half_is_no_warm_up() -> None:
    trace = noisy(60)
    trace[25] = 400.0
    assert warmup_steps(trace) == 2


def test_a_slow_benchmark_phase_is_left_out() -> None:
    assert 8 <= warmup_steps([*noisy(8, level=25.0), *noisy(92)]) <= 20


def test_the_steps_that_only_filled_the_gpus_queue_are_left_out() -> None:
    assert 31 <= warmup_steps([300.0, *noisy(30, level=1.0), *noisy(100)]) <= 45


def test_slow_drift_never_costs_more_than_half() -> None:
    drifting = [x * (1 + i / 400) for i, x in enumerate(noisy(200))]
    assert 2 <= warmup_steps(drifting) <= 100


def test_a_loaders_read_ahead_is_left_out() -> None:
    assert warmup_steps(noisy(100), queue_batches=16) >= 18
    assert warmup_steps(noisy(20), queue_batches=16) == 10, "but never more than half"


def test_steps_known_to_be_out_are_out_and_do_not_count_for_the_half() -> None:
    audited = noisy(10, level=80.0)
    assert warmup_steps([*audited, *noisy(10)], known=10) == 10
    assert warmup_steps([*audited, 500.0, *noisy(19)], known=10) == 11


def test_a_long_trace_is_judged_by_its_beginning() -> None:
    assert warmup_steps([900.0, *([10.0] * 200_000)]) == 2
