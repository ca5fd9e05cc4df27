"""The gate neither cries wolf nor sleeps, and takes no figure that was not measured."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from gpurun.stats.gated_metric import Gated
from scripts.simulate_gate import Cell, Outcome, simulate

from gpurun.errors import ExitCode, GpurunError
from gpurun.pairs.gate import DEFAULT, SPEED_PRIOR, GatePlan, GateResult, Verdict, judge
from gpurun.records.bench.metrics import Metric

Pairs = list[tuple[float, float]]


def noisy(count: int, worse: float, noise: float, seed: int) -> Pairs:
    """Pairs of figures of which the current one is larger by the factor `worse`."""
    rng = random.Random(seed)
    return [
        (100 * math.exp(rng.gauss(0, noise)), 100 * worse * math.exp(rng.gauss(0, noise)))
        for _ in range(count)
    ]


def throughput(pairs: Pairs, threshold: float = 0.05, plan: GatePlan = DEFAULT) -> GateResult:
    return judge([Gated(Metric.THROUGHPUT, pairs, threshold)], plan)


LIVE = DEFAULT.of_live_pairs


def outcome(law: str, noise: float, slowdown: float, plan: GatePlan = DEFAULT) -> Outcome:
    return simulate(Cell(law, noise, slowdown), plan, runs=600, seed=7)


@pytest.mark.parametrize("law", ["gauss", "t3", "drift", "walk", "ar"])
@pytest.mark.parametrize(("noise", "slowdown"), [(0.1, 0.0), (0.1, 0.05), (0.02, 0.05)])
def test_the_bars_hold_under_every_law_of_noise(law: str, noise: float, slowdown: float) -> None:
    assert outcome(law, noise, slowdown).missed == []


def test_without_the_widening_correlated_noise_would_break_both_bars() -> None:
    plain = replace(DEFAULT, caution=0.0, believed=0.0)
    assert outcome("ar", 0.1, 0.0, plain).missed == ["FALSE REGRESSIONS"]
    assert outcome("ar", 0.02, 0.05, plain).missed == ["FALSE PASSES"]


@pytest.mark.parametrize("max_pairs", [4, 7, 10, 24])
def test_another_end_keeps_the_error_rates(max_pairs: int) -> None:
    plan = GatePlan.up_to(max_pairs)
    assert outcome("ar", 0.1, 0.0, plan).missed == []
    assert outcome("ar", 0.1, 0.05, plan).missed == []


def test_a_tree_that_lost_nothing_passes_at_the_first_look_when_noise_is_low() -> None:
    result = throughput(noisy(16, 1.0, 0.003, 1))
    assert (result.verdict, result.pairs_used) == (Verdict.PASS, 4)


def test_a_loss_of_half_is_a_regression_at_the_first_look() -> None:
    result = throughput([(100.0, 50.0), (101.0, 50.2), (99.0, 49.9), (100.0, 50.3)])
    assert (result.verdict, result.pairs_used) == (Verdict.REGRESSION, 4)
    (metric,) = result.regressed
    assert metric.slowdown == pytest.approx(0.5, abs=0.01)


def test_a_gain_passes() -> None:
    result = throughput(noisy(16, 1.5, 0.01, 2))
    assert result.verdict is Verdict.PASS
    slowdown = result.metrics[0].slowdown
    assert slowdown is not None
    assert slowdown < -0.4


def test_a_proven_loss_below_the_threshold_passes() -> None:
    result = throughput(noisy(16, 0.97, 0.002, 3))
    assert result.verdict is Verdict.PASS
    interval = result.metrics[0].interval
    assert interval is not None
    assert 0.01 < interval[0] < 0.03 < interval[1] < 0.05


def test_before_the_first_look_it_asks_for_more_and_says_nothing() -> None:
    for count in range(4):
        result = throughput(noisy(count, 0.5, 0.01, 4))
        assert (result.verdict, result.pairs_used, result.next_look) == (Verdict.MORE, 0, 4)
        assert result.p_value is None
        assert result.metrics[0].interval is None


def test_undecided_means_more_between_looks_and_inconclusive_at_the_last() -> None:
    pairs = [(100.0, 130.0), (100.0, 70.0)] * 8
    assert [throughput(pairs[:n]).next_look for n in (4, 5, 6, 15)] == [6, 6, 8, 16]
    result = throughput(pairs)
    assert (result.verdict, result.next_look) == (Verdict.INCONCLUSIVE, None)
    assert result.metrics[0].verdict is Verdict.INCONCLUSIVE


def test_pairs_after_the_deciding_look_change_nothing() -> None:
    pairs = noisy(4, 1.0, 0.001, 5)
    assert throughput(pairs).verdict is Verdict.PASS
    assert throughput([*pairs, (100.0, 10.0), (100.0, 9.0)]) == throughput(pairs)


def test_the_p_value_agrees_with_the_interval_and_so_with_the_verdict() -> None:
    for seed in range(300):
        result = throughput(noisy(16, 0.97, 0.02, seed))
        (metric,) = result.metrics
        assert metric.interval is not None
        assert result.p_value is not None
        assert (result.p_value < 0.01) == (metric.interval[0] > 0.01)
        proven = result.p_value < 0.01 and metric.interval[1] >= 0.05
        assert proven == (result.verdict is Verdict.REGRESSION)


def test_lost_throughput_and_added_step_time_are_the_same_loss() -> None:
    pairs = noisy(16, 0.93, 0.01, 6)
    rates = throughput(pairs)
    times = judge([Gated(Metric.STEP_TIME, [(1 / b, 1 / c) for b, c in pairs], 0.05)])
    assert times.verdict is rates.verdict is Verdict.REGRESSION
    assert times.metrics[0].slowdown == pytest.approx(rates.metrics[0].slowdown)
    assert times.metrics[0].interval == pytest.approx(rates.metrics[0].interval)


def test_memory_counts_by_its_growth_and_identical_figures_decide_at_once() -> None:
    assert Metric.PEAK_MEMORY.default_threshold == 0.01
    for now, verdict in ((1000, Verdict.PASS), (1003, Verdict.PASS), (1050, Verdict.REGRESSION)):
        result = judge([Gated(Metric.PEAK_MEMORY, [(1000.0, float(now))] * 4, 0.01)])
        assert result.verdict is verdict
        (metric,) = result.metrics
        assert metric.slowdown == pytest.approx(now / 1000 - 1)
        assert metric.correlation is None


def test_identical_figures_do_not_prove_that_a_loss_close_to_the_threshold_is_below_it() -> None:
    assert throughput([(1000.0, 951.0)] * 4).verdict is not Verdict.PASS


def test_all_metrics_must_pass_and_one_regression_is_enough() -> None:
    same, noisier = noisy(16, 1.0, 0.002, 7), noisy(16, 1.0, 0.015, 8)
    grown = [(b, 1.1 * b) for b, _ in same]
    good, memory = Gated(Metric.THROUGHPUT, same, 0.05), Gated(Metric.PEAK_MEMORY, grown, 0.01)
    result = judge([good, memory])
    assert result.verdict is Verdict.REGRESSION
    assert [m.metric for m in result.regressed] == [Metric.PEAK_MEMORY]
    assert result.metrics[0].verdict is Verdict.PASS
    both = judge([good, Gated(Metric.ENERGY, noisier, 0.05)])
    alone = judge([good])
    assert both.verdict is Verdict.PASS
    assert both.pairs_used > alone.pairs_used


def test_metrics_share_the_error_of_a_false_alarm_but_not_that_of_a_false_pass() -> None:
    gated = [Gated(Metric.THROUGHPUT, noisy(4, 0.98, 0.01, 9), 0.05)] * 2
    alone, shared = judge(gated[:1]).metrics[0], judge(gated).metrics[0]
    assert alone.interval is not None
    assert shared.interval is not None
    assert shared.interval[0] < alone.interval[0]
    assert shared.interval[1] == alone.interval[1]


def test_correlation_is_estimated_and_widens_the_interval() -> None:
    steps = [-3, -2, -1, -2, 0, 1, 0, 1, 3, 2, 1, 2, 0, -1, -1, 0]
    slow, quick = steps, [s * (-1) ** i for i, s in enumerate(steps)]
    drifting, hopping = (
        throughput([(100.0, 97.0 * math.exp(0.02 * s)) for s in series]).metrics[0]
        for series in (slow, quick)
    )
    assert drifting.correlation is not None
    assert hopping.correlation is not None
    assert drifting.correlation > 0.5 > 0 > hopping.correlation
    assert drifting.widening is not None
    assert drifting.widening > 1.2
    assert hopping.widening == 1.0


@pytest.mark.parametrize("figure", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("side", ["baseline", "current"])
def test_a_figure_that_is_none_is_an_error_of_the_benchmark(figure: float, side: str) -> None:
    bad = (figure, 100.0) if side == "baseline" else (100.0, figure)
    with pytest.raises(GpurunError, match=rf"{side} in pair 3") as caught:
        throughput([(100.0, 100.0)] * 2 + [bad])
    assert caught.value.code is ExitCode.BENCHMARK_FAILED
    assert caught.value.todo


def test_metrics_of_unequal_lengths_are_refused() -> None:
    pairs = noisy(6, 1.0, 0.01, 10)
    with pytest.raises(GpurunError, match="'peak_memory': 5") as caught:
        judge([Gated(Metric.THROUGHPUT, pairs, 0.05), Gated(Metric.PEAK_MEMORY, pairs[:5], 0.01)])
    assert caught.value.code is ExitCode.BENCHMARK_FAILED


@pytest.mark.parametrize("threshold", [0.0, -0.05, 5.0, math.nan])
def test_a_threshold_that_is_no_fraction_is_refused(threshold: float) -> None:
    with pytest.raises(GpurunError, match="threshold of throughput"):
        Gated(Metric.THROUGHPUT, [], threshold)


def test_the_last_look_is_at_the_most_pairs_allowed() -> None:
    assert GatePlan.up_to(16) == DEFAULT
    assert GatePlan.up_to(4).looks == (4,)
    assert GatePlan.up_to(9).looks == (4, 6, 8, 9)
    assert GatePlan.up_to(40).looks == (4, 6, 8, 12, 16, 24, 32, 40)
    with pytest.raises(GpurunError, match="before the first look, which takes 4 pairs"):
        GatePlan.up_to(3)


@pytest.mark.parametrize("law", ["gauss", "t3", "turns"])
@pytest.mark.parametrize("of_prior", [1.0, math.sqrt(2), 2.0])
@pytest.mark.parametrize("slowdown", [0.0, 0.05])
def test_live_pairs_keep_the_errors_up_to_twice_the_noise_of_the_prior(
    law: str, of_prior: float, slowdown: float
) -> None:
    cell = Cell(law, of_prior * SPEED_PRIOR.sd / math.sqrt(2), slowdown, live=True)
    assert simulate(cell, LIVE, runs=400, seed=3).missed == []


def test_without_the_widening_of_early_looks_live_pairs_would_pass_too_much() -> None:
    cell = Cell("gauss", 2 * SPEED_PRIOR.sd / math.sqrt(2), 0.05, live=True)
    bare = replace(LIVE, caution=0.0)
    assert simulate(cell, bare, runs=2000, seed=3).missed == ["FALSE PASSES"]


def test_three_live_pairs_decide_what_takes_more_in_turn() -> None:
    lost = [(100.0, 91.0), (100.0, 91.6), (100.0, 91.3)]
    assert throughput(lost, plan=LIVE).verdict is Verdict.REGRESSION
    assert throughput(lost).verdict is Verdict.MORE
    same = [(100.0, 100.4), (100.0, 99.1), (100.0, 100.2)]
    assert throughput(same, plan=LIVE).verdict is Verdict.PASS


def test_three_live_pairs_that_agree_by_chance_are_not_believed_to_be_that_exact() -> None:
    close = [(100.0, 96.5)] * 3
    assert throughput(close, plan=LIVE).verdict is Verdict.MORE


def test_an_energy_of_which_nothing_is_known_beforehand_takes_more_live_pairs() -> None:
    figures = [(1.0, 1.012), (1.0, 0.995), (1.0, 0.993)]
    gated = [Gated(Metric.ENERGY, figures, 0.05)]
    assert judge(gated, LIVE).verdict is Verdict.MORE
    assert judge([Gated(Metric.STEP_TIME, figures, 0.05)], LIVE).verdict is Verdict.PASS


@pytest.mark.parametrize("max_pairs", [4, 7, 24])
def test_live_pairs_end_at_the_same_last_look(max_pairs: int) -> None:
    plan = GatePlan.up_to(max_pairs).of_live_pairs
    assert (plan.looks[0], plan.looks[-1]) == (3, max_pairs)
    assert list(plan.looks) == sorted(set(plan.looks))
