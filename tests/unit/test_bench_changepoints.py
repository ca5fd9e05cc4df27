"""Change points are found where a level changes, and not where a machine wanders."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpurun.stats.change_points import Direction, LevelChange, Point, find_trend
from scripts.simulate_changepoints import changes, drift_rates, errors, simulate


def find_changes(points: Sequence[Point], higher_is_better: bool = True) -> tuple[LevelChange, ...]:
    return find_trend(points, higher_is_better)[0]


def quiet(length: int, seed: int = 3, noise: float = 0.25) -> list[float]:
    """White noise of half a percent."""
    return [noise * e for e in errors("white", length, random.Random(seed))]


def points(levels: list[float], seed: int = 3) -> list[Point]:
    noise = quiet(len(levels), seed)
    return [
        Point(f"c{i}", (v * (1 + e),)) for i, (v, e) in enumerate(zip(levels, noise, strict=True))
    ]


@pytest.mark.parametrize("law", ["ar 0.3", "ar 0.5", "walk 0.1"])
def test_series_without_a_change_have_none_though_their_noise_is_correlated(law: str) -> None:
    rng = random.Random(4)
    assert sum(bool(changes(errors(law, 60, rng))) for _ in range(40)) <= 2


def test_steps_of_five_percent_are_found_at_two_percent_noise() -> None:
    rates = simulate("white", 80, series=10, seed=3)
    assert rates.false == 0
    assert rates.found >= 0.7


def test_a_small_loss_with_every_commit_is_a_drift_and_no_change_of_level() -> None:
    found, drift = find_trend(points([100 * 0.994**i for i in range(30)]))
    assert found == ()
    assert drift is not None
    assert drift.direction is Direction.REGRESSION
    assert drift.per_point == pytest.approx(-0.006, abs=0.001)
    assert drift.interval[0] < 0.994**29 - 1 < drift.interval[1] < 0


@pytest.mark.parametrize(("law", "least"), [("white", 0.95), ("ar 0.5", 0.85), ("ar 0.8", 0.75)])
def test_a_drift_of_thirty_records_is_found_and_rarely_where_there_is_none(
    law: str, least: float
) -> None:
    false, found = drift_rates(law, 30, series=40, seed=2)
    assert false <= 0.05
    assert found >= least


def test_a_change_of_level_is_no_drift() -> None:
    found, drift = find_trend(points([100.0] * 15 + [90.0] * 15))
    assert [change.commit for change in found] == ["c15"]
    assert drift is None
    assert find_trend(points([100.0, 99.0, 98.0, 97.0, 96.0, 95.0, 94.0, 93.0]))[1] is None


def test_one_disturbed_record_is_no_change() -> None:
    logs = quiet(60)
    logs[30] -= 0.2
    assert changes(logs) == ()


def test_a_disturbance_that_fades_within_a_few_records_is_no_change() -> None:
    for seed in range(4):
        logs = quiet(60, seed)
        for later, lost in enumerate((0.2, 0.08, 0.03)):
            logs[25 + later] -= lost
        assert changes(logs) == ()


def test_a_change_names_its_commit_size_and_direction() -> None:
    (change,) = find_changes(points([100.0] * 30 + [94.0] * 30))
    assert change.commit == "c30"
    assert change.direction is Direction.REGRESSION
    assert change.change == pytest.approx(-0.06, abs=0.01)
    assert change.interval[0] < -0.06 < change.interval[1] < 0
    assert change.earliest <= "c30" <= change.latest


def test_less_is_an_improvement_where_lower_is_better() -> None:
    (change,) = find_changes(points([100.0] * 30 + [94.0] * 30), higher_is_better=False)
    assert change.direction is Direction.IMPROVEMENT


def test_a_regression_that_was_mended_is_two_changes() -> None:
    found = find_changes(points([100.0] * 40 + [92.0] * 8 + [100.0] * 40))
    assert [c.commit for c in found] == ["c40", "c48"]
    assert [c.direction for c in found] == [Direction.REGRESSION, Direction.IMPROVEMENT]


def test_several_changes_are_told_apart() -> None:
    found = find_changes(points([100.0] * 25 + [95.0] * 25 + [90.0] * 25 + [99.0] * 25))
    assert [c.commit for c in found] == ["c25", "c50", "c75"]


def test_a_commit_without_values_is_left_out_and_not_read_as_zero() -> None:
    history = points([100.0] * 30 + [94.0] * 30)
    history[10] = replace(history[10], values=())
    (change,) = find_changes(history)
    assert change.commit == "c30"


def test_several_values_of_a_commit_weigh_more_than_one() -> None:
    def change(count: int) -> LevelChange:
        rng = random.Random(6)
        levels = [100.0] * 15 + [94.0] * 15
        return find_changes(
            [
                Point(str(i), tuple(v * (1 + rng.gauss(0, 0.02)) for _ in range(count)))
                for i, v in enumerate(levels)
            ]
        )[0]

    one, five = change(1), change(5)
    assert five.interval[1] - five.interval[0] < one.interval[1] - one.interval[0]
    assert five.commit == "15"


def test_records_of_one_moment_and_of_uneven_times_are_taken_as_they_come() -> None:
    history = points([100.0] * 30 + [94.0] * 30)
    rng = random.Random(8)
    at, moments = 0.0, []
    for _ in history:
        at += rng.choice((0.0, 60.0, 3600.0, 1e6))
        moments.append(at)
    timed = [replace(p, at=at) for p, at in zip(history, moments, strict=True)]
    assert [c.commit for c in find_changes(timed)] == ["c30"]
    assert [c.commit for c in find_changes([replace(p, at=5.0) for p in history])] == ["c30"]


def test_a_history_too_short_or_perfectly_even_has_no_changes() -> None:
    assert find_changes([]) == ()
    assert find_changes(points([100.0, 100.0, 50.0, 50.0])) == ()
    assert find_changes([Point(str(i), (100.0,)) for i in range(30)]) == ()


def test_differences_below_the_floor_of_any_machine_are_none() -> None:
    levels = [100.0] * 30 + [100.01] * 30
    assert find_changes([Point(str(i), (v,)) for i, v in enumerate(levels)]) == ()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_positive_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        find_changes([Point("a", (value,))])


def test_reading_the_module_needs_no_numpy() -> None:
    code = "import gpurun.stats.change_points, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
