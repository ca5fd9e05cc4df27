"""The sequential test claims no more than it may, and says plainly what it does not know yet."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from itertools import pairwise

import pytest

from gpurun.stats.descriptive import geometric_mean, median, median_error, percentile
from gpurun.stats.sequential_test import DEFAULT, LIVE, SequentialPlan, sequential_look
from scripts.simulate_error_rates import simulate


def noisy_pairs(count: int, effect: float, noise: float, seed: int) -> list[tuple[float, float]]:
    rng = random.Random(seed)
    return [
        (100 * math.exp(rng.gauss(0, noise)), 100 * effect * math.exp(rng.gauss(0, noise)))
        for _ in range(count)
    ]


def test_the_levels_of_the_looks_add_up_to_five_percent() -> None:
    assert DEFAULT.alpha == pytest.approx(0.05)


@pytest.mark.parametrize("law", ["gauss", "t3", "drift", "walk"])
@pytest.mark.parametrize("noise", [0.005, 0.03])
def test_equal_programs_are_rarely_called_different(law: str, noise: float) -> None:
    rates = simulate(law, noise, 1.0, repeats=400, seed=7)
    assert rates.claimed <= 0.05
    assert rates.covered >= 0.95


@pytest.mark.parametrize("law", ["gauss", "t3", "drift", "walk"])
def test_the_interval_covers_the_true_effect(law: str) -> None:
    assert simulate(law, 0.02, 1.05, repeats=400, seed=7).covered >= 0.95


def test_a_plain_t_test_at_every_look_would_fail_the_same_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    naive = SequentialPlan(levels=(0.05,) * 6)
    monkeypatch.setattr(
        "scripts.simulate_error_rates.sequential_look",
        lambda pairs, _: sequential_look(pairs, naive),
    )
    assert simulate("gauss", 0.03, 1.0, repeats=400, seed=7).claimed > 0.10


def test_a_fivefold_gain_is_proven_precisely_within_three_pairs() -> None:
    assert simulate("gauss", 0.01, 5.0, repeats=300, seed=7).mean_pairs < 3


def test_a_gain_of_five_percent_at_one_percent_noise_is_proven_within_eight_pairs() -> None:
    for seed in range(100):
        look = sequential_look(noisy_pairs(8, 1.05, 0.01, seed))
        assert look.significant
        assert look.interval is not None
        assert look.interval[0] > 1


@pytest.mark.parametrize("law", ["gauss", "t3", "drift", "walk"])
@pytest.mark.parametrize("noise", [0.005, LIVE.prior_sd / math.sqrt(2), LIVE.prior_sd])
def test_live_pairs_keep_the_error_also_at_twice_the_variance_of_the_prior(
    law: str, noise: float
) -> None:
    rates = simulate(law, noise, 1.0, repeats=400, seed=7, plan=LIVE)
    assert rates.claimed <= 0.06
    assert rates.covered >= 0.94


def test_two_or_three_live_pairs_prove_a_gain_of_15_percent() -> None:
    assert simulate("gauss", 0.02, 1.15, repeats=200, seed=7, plan=LIVE).mean_pairs < 3


def test_one_live_pair_proves_a_gain_far_beyond_what_launches_differ_by() -> None:
    assert sequential_look([(100.0, 140.0)], LIVE, [0.01]).significant
    assert not sequential_look([(100.0, 125.0)], LIVE, [0.01]).significant
    assert not sequential_look([(100.0, 140.0)], LIVE, [0.1]).significant, "its turns disagree"
    assert not sequential_look([(100.0, 900.0)], LIVE, [0.01]).settled, "a second one narrows it"
    assert sequential_look([(100.0, 900.0)]).interval is None, "without a prior one says nothing"


def test_two_live_pairs_that_agree_by_chance_are_not_believed_to_be_that_exact() -> None:
    low, high = sequential_look([(100.0, 300.0), (100.0, 300.0)], LIVE).interval or (0, 0)
    assert 0.85 < low / 3 < 0.95
    assert 1.05 < high / 3 < 1.15


def test_two_pairs_whose_turns_disagree_prove_less() -> None:
    pairs = [(100.0, 134.0), (100.0, 125.0)]
    assert sequential_look(pairs, LIVE, [0.01, 0.01]).significant
    assert not sequential_look(pairs, LIVE, [0.15, 0.15]).significant
    assert sequential_look([(100.0, 300.0)] * 2, LIVE, [0.15, 0.15]).significant


def test_nothing_is_said_before_the_first_look() -> None:
    for pairs in ([], [(100.0, 500.0)]):
        look = sequential_look(pairs)
        assert (look.speedup, look.interval, look.p_value) == (None, None, None)
        assert not look.settled
        assert not look.significant


def test_pairs_after_the_last_completed_look_are_left_out() -> None:
    pairs = noisy_pairs(4, 1.01, 0.02, 3)
    assert sequential_look([*pairs, (100.0, 900.0)]) == sequential_look(pairs)
    assert sequential_look(pairs).pairs_used == 4


def test_the_adjusted_p_value_agrees_with_the_interval() -> None:
    for seed in range(200):
        for count in DEFAULT.looks:
            look = sequential_look(noisy_pairs(count, 1.02, 0.015, seed))
            assert look.p_value is not None
            assert (look.p_value < DEFAULT.alpha) == look.significant


def test_a_slower_candidate_is_significant_below_one() -> None:
    look = sequential_look(noisy_pairs(4, 0.5, 0.005, 1))
    assert look.significant
    assert look.speedup == pytest.approx(0.5, rel=0.02)
    assert look.interval is not None
    assert look.interval[1] < 1


def test_identical_figures_do_not_make_a_tiny_difference_certain() -> None:
    look = sequential_look([(100.0, 100.1), (100.0, 100.1)])
    assert not look.significant, "two pairs that agree by chance carry no knowledge of the noise"


def test_it_settles_without_a_claim_once_no_relevant_gain_is_possible() -> None:
    look = sequential_look([(100.0, 100.02 if i % 2 else 99.98) for i in range(4)])
    assert look.settled
    assert not look.significant
    assert look.pairs_used < DEFAULT.looks[-1]


def test_it_settles_at_the_last_look_whatever_it_saw() -> None:
    look = sequential_look([(100.0, 150.0 if i % 2 else 66.0) for i in range(12)])
    assert look.settled
    assert not look.significant
    assert not sequential_look([(100.0, 150.0 if i % 2 else 66.0) for i in range(8)]).settled


def test_a_plan_with_unequal_looks_and_levels_is_refused() -> None:
    with pytest.raises(ValueError, match="one level each"):
        SequentialPlan(looks=(2, 4))
    with pytest.raises(ValueError, match="two pairs"):
        SequentialPlan(looks=(1, 4), levels=(0.02, 0.03))


def test_the_error_of_a_median_covers_it_whatever_lies_far_away() -> None:
    draws = random.Random(3)
    for outliers in (0, 2):
        missed = 0
        for _ in range(400):
            values = [draws.gauss(0, 1) for _ in range(24)]
            values[:outliers] = [1000.0] * outliers
            missed += abs(median(values)) > 2.5 * median_error(values)
        assert missed <= 40


def test_descriptive_figures() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([1.0], 99) == 1.0
    assert percentile([float(i) for i in range(101)], 95) == 95.0
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_importing_stats_imports_neither_scipy_nor_numpy() -> None:
    code = "import gpurun.stats, sys; sys.exit('scipy' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_proven_gain_stays_proven_while_its_interval_narrows() -> None:
    pairs = [(100.0, 300.0), (100.0, 304.0), (100.0, 240.0), (100.0, 390.0)]
    looks = [sequential_look(pairs[:n]) for n in (2, 3, 4)]
    assert looks[0].significant
    for earlier, later in pairwise(looks):
        assert later.significant
        assert earlier.interval is not None
        assert later.interval is not None
        assert later.interval[0] >= earlier.interval[0]
        assert later.interval[1] <= earlier.interval[1]


def test_a_vague_gain_does_not_settle_while_there_is_time() -> None:
    look = sequential_look([(100.0, 300.0), (100.0, 308.0)])
    assert look.significant
    assert not look.settled
