"""Which number of loader workers is taken, from the turns of several."""

from __future__ import annotations

import pytest

from gpurun.knobs.loading.loader_need import enough_workers, worker_rates


def test_the_smallest_number_within_the_noise_of_the_best_is_enough() -> None:
    steady = {1: [50.0, 50.2], 2: [97.0, 97.2], 4: [100.0, 100.2], 8: [101.0, 101.2]}
    assert enough_workers(worker_rates(steady)) == 4
    noisy = {1: [50.0, 52.0], 2: [94.0, 100.0], 4: [96.0, 102.0], 8: [98.0, 101.0]}
    assert enough_workers(worker_rates(noisy)) == 2
    assert enough_workers(worker_rates({1: [50.0, 50.0], 2: [40.0, 40.0]})) == 1


def test_the_error_is_that_of_all_turns_of_the_process() -> None:
    found = worker_rates({4: [100.0, 102.0, 100.0, 102.0], 2: [50.0, 51.0]})
    assert [rate.workers for rate in found] == [2, 4]
    assert found[1].samples_per_second == pytest.approx(101.0, rel=1e-3)
    assert found[0].error == pytest.approx(2**0.5 * (found[1].error or 0.0))
    assert 0.005 < (found[0].error or 0.0) < 0.015


def test_single_turns_have_no_error_and_need_a_clear_gain() -> None:
    found = worker_rates({1: [100.0], 2: [104.0], 4: [90.0]})
    assert [rate.error for rate in found] == [None] * 3
    assert enough_workers(found) == 1
    assert enough_workers(worker_rates({1: [100.0], 2: [108.0]})) == 2
