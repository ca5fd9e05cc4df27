"""A new run is called worse only where the noise between runs cannot have made it so."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from gpurun.bench.history.past_records import MOST_RUNS, NewRun, judge_new_run
from gpurun.pairs.gate import Verdict
from gpurun.records.bench.metrics import Metric
from gpurun.stats.change_points import Point
from scripts.launch_noise import paired_errors, run_errors
from scripts.simulate_from_history import Cell, simulate


def runs(rates: list[float], launches: int = 5, noise: float = 0.002, seed: int = 1) -> list[Point]:
    rng = random.Random(seed)
    return [
        Point(
            f"c{i}",
            tuple(rate * math.exp(noise * rng.gauss(0, 1)) for _ in range(launches)),
            3600.0 * i,
        )
        for i, rate in enumerate(rates)
    ]


def held(past: list[float], now: float, metric: Metric = Metric.THROUGHPUT) -> NewRun:
    *before, current = runs([*past, now])
    return NewRun(metric, before, current, 0.05)


STEADY = [1000.0, 1004.0, 998.0, 1001.0, 996.0, 1003.0]


@pytest.mark.parametrize(
    ("now", "verdict"),
    [(1000.0, Verdict.PASS), (1200.0, Verdict.PASS), (850.0, Verdict.REGRESSION)],
)
def test_the_new_run_is_held_against_steady_records(now: float, verdict: Verdict) -> None:
    result = judge_new_run([held(STEADY, now)])
    assert result.verdict is verdict
    metric = result.metrics[0]
    assert metric.slowdown == pytest.approx(1 - now / 1000, abs=0.01)
    assert metric.interval is not None
    assert metric.interval[0] < 1 - now / 1000 < metric.interval[1]
    assert metric.p_value is not None
    assert (metric.p_value < 0.01) is (verdict is Verdict.REGRESSION)


def test_records_that_differ_much_leave_it_undecided() -> None:
    noisy = [1000.0, 1120.0, 930.0, 1050.0, 900.0, 1080.0]
    assert judge_new_run([held(noisy, 930.0)]).verdict is Verdict.INCONCLUSIVE


def test_memory_that_grows_is_a_regression_and_less_of_it_passes() -> None:
    more, less = (held([1e9] * 5, now, Metric.PEAK_MEMORY) for now in (1.3e9, 0.7e9))
    assert judge_new_run([more]).verdict is Verdict.REGRESSION
    assert judge_new_run([less]).verdict is Verdict.PASS


def test_one_metric_that_regressed_is_enough() -> None:
    fine, worse = held(STEADY, 1000.0), held(STEADY, 800.0)
    assert judge_new_run([fine, worse]).verdict is Verdict.REGRESSION
    assert [m.verdict for m in judge_new_run([fine, worse]).metrics] == [
        Verdict.PASS,
        Verdict.REGRESSION,
    ]


def test_fewer_launches_than_the_records_have_widen_the_interval() -> None:
    past = runs(STEADY, launches=16, noise=0.02)
    whole = runs([1000.0], launches=16, noise=0.02, seed=2)[0]
    few = Point("now", whole.values[:2], 3600.0 * len(past))
    widths = []
    for current in (Point("now", whole.values, few.at), few):
        bounds = judge_new_run([NewRun(Metric.THROUGHPUT, past, current, 0.05)]).metrics[0].interval
        assert bounds is not None
        widths.append(bounds[1] - bounds[0])
    assert widths[1] > 1.2 * widths[0]


@pytest.mark.parametrize("law", ["gauss", "ar 0.6"])
def test_equal_runs_do_not_regress_and_losses_do_not_pass_whatever_the_noise(law: str) -> None:
    equal = simulate(Cell(law, 0.05, 0.0), MOST_RUNS, history=10, runs=100, seed=7)
    assert equal.verdicts[Verdict.REGRESSION] <= 3
    worse = simulate(Cell(law, 0.02, 0.05), MOST_RUNS, history=10, runs=100, seed=7)
    assert worse.verdicts[Verdict.PASS] <= 10
    large = simulate(Cell(law, 0.005, 0.1), MOST_RUNS, history=10, runs=40, seed=7)
    assert large.verdicts[Verdict.REGRESSION] >= 36


def test_noise_of_runs_has_the_correlation_that_its_law_names() -> None:
    errors = run_errors("ar 0.6", 400, 40, np.random.default_rng(1))
    assert np.corrcoef(errors[:, :-1].ravel(), errors[:, 1:].ravel())[0, 1] == pytest.approx(
        0.6, abs=0.03
    )
    pairs = paired_errors("ar", 400, 16, np.random.default_rng(1))
    assert np.corrcoef(pairs[:, :-1].ravel(), pairs[:, 1:].ravel())[0, 1] == pytest.approx(
        0.3, abs=0.03
    )
