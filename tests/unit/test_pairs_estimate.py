"""The estimate of pairs believes none of them more than it shows, and is moved by nothing else."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.pairs.estimate import (
    MEMORY_SD,
    MOST_WEIGHT,
    WIDENING,
    Reading,
    estimate,
    is_loose,
)
from gpurun.records.codec import from_json
from gpurun.records.result import RunResult
from gpurun.stats.descriptive import SD_FLOOR, mean, t_quantile
from tests.recordings import unpacked
from tests.unit.bench_launches import on_gpu, result

QUIET = 0.02


def read(log: float, error: float = 0.0, sd: float = QUIET) -> Reading:
    return Reading(log, error, sd)


def drawn(count: int, seed: int) -> list[Reading]:
    """Pairs about ×1.2 whose turns are exact, or agree badly."""
    rng = random.Random(seed)
    return [read(rng.gauss(math.log(1.2), 0.03), rng.uniform(0.001, 0.1)) for _ in range(count)]


def test_a_pair_whose_turns_disagree_counts_for_less() -> None:
    exact, loose = read(0.0, 0.01), read(0.3, 0.02)
    found = estimate([exact, exact, loose])
    assert 0 < found.log < 0.1
    assert estimate([exact, exact, replace(loose, error=0.03)]).log < found.log


@pytest.mark.parametrize("error", [0.2, 5.0])
def test_no_pair_has_more_than_three_times_the_weight_of_another(error: float) -> None:
    found = estimate([read(0.0), read(0.4, error)])
    assert MOST_WEIGHT == 3.0
    assert found.log == pytest.approx(0.4 / (3 + 1))


def test_a_pair_that_claims_to_be_exact_does_not_decide_against_two_others() -> None:
    found = estimate([read(0.5, 0.0001), read(0.0, 0.1), read(0.0, 0.1)])
    assert found.log == pytest.approx(0.5 * 3 / 5)
    assert found.half_width(0.025) > found.log, "they contradict one another, and it says so"


@pytest.mark.parametrize("error", [0.001, 0.05])
def test_a_displaced_pair_widens_the_interval_however_exact_it_claims_to_be(error: float) -> None:
    pairs = [read(0.01, 0.01), read(0.0, 0.01), read(-0.01, 0.01), read(0.0, error)]
    alike, displaced = estimate(pairs), estimate([*pairs[:3], read(0.3, error)])
    assert displaced.half_width(0.025) > 2 * alike.half_width(0.025)
    assert displaced.pair_sd > 2 * alike.pair_sd


def test_one_pair_has_the_error_of_the_prior_and_its_own() -> None:
    found = estimate([Reading(0.2, 0.04, 0.03)])
    assert (found.log, found.freedom) == (0.2, 1)
    assert found.error == pytest.approx(0.05)
    assert found.pair_sd == pytest.approx(0.05)
    assert found.half_width(0.025) == pytest.approx(0.05 * t_quantile(1, 0.975))


def test_a_pair_of_a_kind_that_differs_more_counts_for_less() -> None:
    live, in_turn = read(0.0, sd=0.02), read(0.3, sd=0.03)
    assert estimate([live, in_turn]).log == pytest.approx(0.3 * 4 / 13)
    assert estimate([live, replace(in_turn, sd=0.02)]).log == pytest.approx(0.15)


def test_pairs_that_agree_by_chance_are_not_believed_to_be_that_exact() -> None:
    found = estimate([read(0.1, sd=MEMORY_SD)] * 8)
    assert found.pair_sd == SD_FLOOR
    assert found.error == pytest.approx(WIDENING * SD_FLOOR / math.sqrt(8))
    assert found.freedom == 8


def test_several_pairs_are_as_uncertain_as_correlated_neighbours_are() -> None:
    """Few pairs cannot tell whether they are."""
    away = 0.02 * math.sqrt(3 / 4)  # the scatter that is expected of four pairs
    one, four = estimate([read(0.0)]), estimate([read(away), read(-away)] * 2)
    assert four.error == pytest.approx(WIDENING * one.error / 2)
    assert pytest.approx(math.sqrt(1.3 / 0.7)) == WIDENING


def test_what_pairs_show_soon_counts_for_more_than_the_prior() -> None:
    rng = random.Random(2)
    pairs = [read(rng.gauss(0, 0.1)) for _ in range(12)]
    seen = math.sqrt(mean([(r.log - mean([p.log for p in pairs])) ** 2 for r in pairs]))
    assert estimate(pairs).pair_sd == pytest.approx(seen, rel=0.1)


def test_pairs_of_one_error_have_their_plain_mean_and_none_is_clipped() -> None:
    logs = [0.0, 0.01, -0.01, 0.02, 5.0]
    assert estimate([read(log, 0.01) for log in logs]).log == pytest.approx(mean(logs))


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_pairs_changes_nothing(seed: int) -> None:
    pairs = drawn(7, seed)
    assert estimate(random.Random(seed).sample(pairs, 7)) == estimate(pairs)


@pytest.mark.parametrize("seed", range(5))
def test_the_same_pairs_seen_from_the_other_side_say_the_same(seed: int) -> None:
    pairs = drawn(5, seed)
    found = estimate(pairs)
    turned = estimate([replace(pair, log=-pair.log) for pair in pairs])
    assert turned == replace(found, log=-found.log)
    assert turned.tail(0.0) == pytest.approx(1 - found.tail(0.0))


def test_a_common_factor_moves_the_estimate_and_not_its_error() -> None:
    pairs = drawn(6, 1)
    found = estimate(pairs)
    moved = estimate([replace(pair, log=pair.log + 1.0) for pair in pairs])
    assert moved.log == pytest.approx(found.log + 1)
    assert moved.error == pytest.approx(found.error)


@pytest.mark.parametrize("level", [0.001, 0.05])
def test_the_p_value_is_the_level_at_the_end_of_that_levels_interval(level: float) -> None:
    found = estimate(drawn(4, 3))
    assert found.tail(found.log - found.half_width(level)) == pytest.approx(level)


# -- the class of a pair ---------------------------------------------------------------------------


def test_launches_are_loose_where_the_gpu_of_either_side_waits_or_nobody_measured_it() -> None:
    busy, waits, unknown = (result(100.0, **on_gpu(percent)) for percent in (97.0, 30.0, None))
    alone = result(100.0)
    assert not is_loose(busy, busy)
    assert not is_loose(alone, alone), "without a GPU the processor sets the pace"
    assert not is_loose(result(100.0, devices=on_gpu(0.0)["devices"])), "it trains beside the GPU"
    assert is_loose(busy, waits)
    assert is_loose(waits, busy)
    assert is_loose(unknown, busy)
    assert is_loose(replace(busy, devices=()))


def test_a_gpu_without_that_counter_is_judged_by_its_utilisation() -> None:
    def with_utilisation(percent: float) -> RunResult:
        known = on_gpu(None)
        gpu = replace(known["devices"][0], gpu_utilization_percent=percent)
        return result(100.0, **{**known, "devices": (gpu,)})

    assert not is_loose(with_utilisation(97.0))
    assert is_loose(with_utilisation(82.0))


@pytest.mark.parametrize(
    ("recorded", "loose"), [("gpt124m_tuning", False), ("simplenet_tuning", True)]
)
def test_recorded_launches_are_told_apart_by_what_sets_their_pace(
    tmp_path: Path, recorded: str, loose: bool
) -> None:
    trials = sorted((unpacked(recorded, tmp_path) / "trials").glob("*/result.json"))
    found = [is_loose(from_json(RunResult, json.loads(one.read_text()))) for one in trials]
    assert len(found) >= 10
    assert set(found) == {loose}
