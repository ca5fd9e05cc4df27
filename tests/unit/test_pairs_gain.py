"""The tuner's test claims no more than it may, and says plainly what it does not know yet."""

from __future__ import annotations

import math
import random

import pytest

from gpurun.pairs import gain
from gpurun.pairs.estimate import (
    IN_TURN_SD,
    LIVE_SD,
    LOOSE_SD,
    MEMORY_SD,
    Reading,
    assumed_sd,
    estimate,
)
from gpurun.pairs.gain import ALPHA, LEVELS, MOST_PAIRS, Look, look
from gpurun.records.bench.metrics import Metric
from scripts.simulate_pairs import COVERAGE, FALSE_CLAIMS, Case, Gains, simulate_gain, wilson

QUIET, ROUGH, NOISY = 0.02, 0.03, 0.08
"""Launches that are assumed to differ by so much."""


def looked(*gains: float, prior: float = QUIET, error: float = 0.01) -> Look:
    """The test after pairs of these gains."""
    return look([Reading(math.log(gain), error, prior) for gain in gains])


def noisy(count: int, effect: float, noise: float, seed: int) -> list[Reading]:
    rng = random.Random(seed)
    return [Reading(rng.gauss(math.log(effect), noise), 0.01, QUIET) for _ in range(count)]


# -- what is proven, and when it is over -----------------------------------------------------------


def test_two_pairs_of_a_large_gain_prove_it_and_settle() -> None:
    found = looked(3.0, 3.05)
    assert found.significant
    assert found.settled
    assert found.speedup == pytest.approx(3.02, abs=0.01)
    low, high = found.interval or (0, 0)
    assert 2.4 < low < 2.75
    assert 3.3 < high < 3.7


def test_three_pairs_do_so_where_launches_differ_more() -> None:
    assert looked(3.0, 3.05, prior=ROUGH, error=0.0).significant
    assert not looked(3.0, 3.05, prior=ROUGH, error=0.0).settled, "the interval is still wide"
    assert looked(3.0, 3.05, 2.97, prior=ROUGH, error=0.0).settled


@pytest.mark.parametrize("size", [1.5, 9.0, 1e12])
def test_one_pair_never_settles_a_gain_however_large(size: float) -> None:
    assert not looked(size).settled


def test_nothing_is_claimed_of_one_pair() -> None:
    assert looked(3.0) == look([])
    assert looked(3.0, 3.0).significant


def test_two_pairs_prove_a_gain_of_twenty_percent_where_launches_differ_little() -> None:
    assert looked(1.2, 1.2).significant
    assert not looked(1.2, 1.2, prior=NOISY).significant
    assert not looked(1.2, 1.2, error=0.1).significant, "turns that disagree prove less"


def test_a_vague_gain_is_proven_and_does_not_settle_while_there_is_time() -> None:
    found = looked(3.0, 3.08, prior=NOISY)
    assert found.significant
    assert not found.settled
    low, high = found.interval or (1, 1)
    assert high / low > 1.2**2


@pytest.mark.parametrize("prior", [QUIET, ROUGH, NOISY])
def test_equal_pairs_are_never_called_different_and_are_given_up(prior: float) -> None:
    found = looked(1.001, 0.999, 1.002, 0.998, prior=prior)
    assert not found.significant
    assert found.settled
    assert found.pairs_used < MOST_PAIRS


def test_it_does_not_give_up_while_a_gain_of_ten_percent_is_possible() -> None:
    assert not looked(1.2, 0.8, 1.0).settled
    assert not looked(1.03, 1.03).settled, "this is worth a change"


def test_a_slower_candidate_is_significant_below_one() -> None:
    found = looked(0.5, 0.502, 0.498)
    assert found.significant
    assert found.settled
    assert found.speedup == pytest.approx(0.5, rel=0.01)
    assert (found.interval or (0, 9))[1] < 1


def test_identical_figures_do_not_make_a_tiny_difference_certain() -> None:
    assert not looked(1.001, 1.001, 1.001).significant


def test_it_settles_at_the_last_look_whatever_it_saw() -> None:
    scattered = [1.5, 0.66] * 6
    assert len(scattered) == MOST_PAIRS
    assert looked(*scattered).settled
    assert not looked(*scattered).significant
    assert not looked(*scattered[:10]).settled


# -- looks -----------------------------------------------------------------------------------------


def test_the_levels_of_the_looks_add_up_to_five_percent() -> None:
    assert math.fsum(LEVELS.values()) == pytest.approx(0.05)
    assert pytest.approx(0.05) == ALPHA
    assert list(LEVELS) == sorted(LEVELS)


def test_without_pairs_nothing_is_said() -> None:
    found = look([])
    assert (found.speedup, found.interval, found.p_value, found.pairs_used) == (None, None, None, 0)
    assert not found.settled
    assert not found.significant


def test_pairs_after_the_last_completed_look_are_left_out() -> None:
    pairs = noisy(6, 1.01, 0.02, 3)
    assert look([*pairs, Reading(2.0, 0.0, QUIET)]) == look(pairs)
    assert look(pairs).pairs_used == 6


def test_the_adjusted_p_value_is_below_5_percent_exactly_where_the_interval_excludes_1() -> None:
    sides = set()
    for seed in range(200):
        pairs = noisy(MOST_PAIRS, 1.03, 0.03, seed)
        for count in LEVELS:
            found = look(pairs[:count])
            assert found.interval is not None
            assert found.p_value is not None
            excluded = not found.interval[0] <= 1 <= found.interval[1]
            assert (found.p_value < ALPHA) == excluded == found.significant
            sides.add(excluded)
    assert sides == {True, False}


def test_an_interval_is_that_of_the_pairs_so_far_whatever_earlier_ones_said() -> None:
    """Intersected with the first one it would hold nothing, and the estimate would be moved."""
    gains = [3.0, 3.0, 1.2, 1.1, 1.0, 1.0]
    early, late = looked(*gains[:2]), looked(*gains)
    assert early.significant
    assert early.interval is not None
    assert late.interval is not None
    assert late.interval[0] < late.interval[1]
    assert late.interval[0] < early.interval[0], "it is no part of the earlier one"
    assert not late.significant, "what two pairs had proven may be taken back"
    readings = [Reading(math.log(gain), 0.01, QUIET) for gain in gains]
    assert late.speedup == pytest.approx(math.exp(estimate(readings).log))
    assert late.speedup < early.interval[0]


def test_live_pairs_differ_less_than_launches_in_turn() -> None:
    assert assumed_sd(Metric.THROUGHPUT, live=True) == LIVE_SD
    assert assumed_sd(Metric.THROUGHPUT, live=False) == IN_TURN_SD
    assert LIVE_SD < IN_TURN_SD


def test_live_pairs_differ_more_where_host_or_loader_hold_the_gpu_up() -> None:
    assert assumed_sd(Metric.THROUGHPUT, live=True, loose=True) == LOOSE_SD > 4 * LIVE_SD
    assert assumed_sd(Metric.THROUGHPUT, live=False, loose=True) == IN_TURN_SD
    assert assumed_sd(Metric.PEAK_MEMORY, live=True, loose=True) == MEMORY_SD


# -- rates, by simulation --------------------------------------------------------------------------

HARDEST = [
    ("live", "ar"),
    ("live", "biased"),
    ("live", "one-sided"),
    ("loose", "ar"),
    ("loose", "biased"),
    ("loose", "one-sided"),
    ("in turn", "ar"),
    ("in turn", "walk"),
    ("mixed", "ar"),
]
RUNS = 600


def rates(kind: str, multiple: float, law: str, effect: float) -> Gains:
    return simulate_gain(Case(kind, multiple, law), effect, RUNS, seed=1)


@pytest.mark.parametrize(("kind", "law"), HARDEST)
def test_equal_programs_are_rarely_called_different_at_four_times_the_prior(
    kind: str, law: str
) -> None:
    found = rates(kind, 4.0, law, 1.0)
    assert found.claimed <= FALSE_CLAIMS * RUNS
    assert found.covered >= COVERAGE * RUNS


@pytest.mark.parametrize(("kind", "law"), HARDEST)
@pytest.mark.parametrize("effect", [1.15, 3.0])
def test_the_interval_holds_the_true_gain_at_four_times_the_prior(
    kind: str, law: str, effect: float
) -> None:
    assert rates(kind, 4.0, law, effect).covered >= COVERAGE * RUNS


def test_a_plain_t_test_at_every_look_would_fail_the_same_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gain, "LEVELS", dict.fromkeys(LEVELS, 0.05))
    monkeypatch.setattr("gpurun.pairs.estimate.WIDENING", 1.0)
    found = rates("live", 4.0, "ar", 1.0)
    assert wilson(found.claimed, RUNS)[0] > FALSE_CLAIMS


def test_gains_are_proven_by_few_pairs_where_launches_differ_as_assumed() -> None:
    for effect, pairs in ((3.0, 3.0), (1.15, 3.5)):
        found = rates("live", 1.0, "gauss", effect)
        assert found.claimed == RUNS
        assert found.pairs < pairs * RUNS
    assert rates("in turn", 1.0, "gauss", 3.0).pairs < 3.5 * RUNS


def test_without_a_gain_it_gives_up_after_few_pairs() -> None:
    assert rates("live", 1.0, "gauss", 1.0).pairs < 3 * RUNS
    assert rates("in turn", 1.0, "gauss", 1.0).pairs < 3.5 * RUNS
