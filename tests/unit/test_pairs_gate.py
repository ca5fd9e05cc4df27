"""The gate neither cries wolf nor sleeps, and takes no figure that was not measured."""

from __future__ import annotations

import math
import random

import pytest

from gpurun.errors import ExitCode, GpurunError
from gpurun.pairs import gate
from gpurun.pairs.estimate import IN_TURN_SD, LIVE_SD, LOOKS, MEMORY_SD, assumed_sd
from gpurun.pairs.gate import DEFAULT, Gated, GatePlan, GateResult, Verdict, judge
from gpurun.records.bench.metrics import Metric
from gpurun.stats.descriptive import mean
from scripts.simulate_pairs import (
    FALSE_PASSES,
    FALSE_REGRESSIONS,
    Case,
    Verdicts,
    simulate_gate,
    wilson,
)

Pairs = list[tuple[float, float]]
QUIET, ROUGH = 0.0191, 0.0294
"""Errors of live pairs that make them as exact as launches which differ by 2 and 3 %."""
SAME = [(100.0, 100.4), (100.0, 99.1), (100.0, 100.2), (100.0, 99.9), (100.0, 100.1)]


def noisy(count: int, worse: float, noise: float, seed: int) -> Pairs:
    """Pairs of figures of which the current one is larger by the factor `worse`."""
    rng = random.Random(seed)
    return [
        (100 * math.exp(rng.gauss(0, noise)), 100 * worse * math.exp(rng.gauss(0, noise)))
        for _ in range(count)
    ]


def throughput(pairs: Pairs, plan: GatePlan = DEFAULT, error: float = QUIET) -> GateResult:
    return judge([Gated(Metric.THROUGHPUT, pairs, 0.05, [error] * len(pairs))], plan)


# -- the three answers -----------------------------------------------------------------------------


def test_a_tree_that_lost_nothing_passes_after_a_few_live_pairs() -> None:
    result = throughput(noisy(16, 1.0, 0.003, 1))
    assert result.verdict is Verdict.PASS
    assert result.pairs_used <= 5


def test_a_loss_of_half_is_a_regression_at_the_first_looks() -> None:
    result = throughput([(100.0, 50.0), (101.0, 50.2), (99.0, 49.9), (100.0, 50.3)])
    assert result.verdict is Verdict.REGRESSION
    assert result.pairs_used <= 3
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
    assert interval[0] < 0.03 < interval[1] < 0.05


def test_before_the_first_look_it_asks_for_more_and_says_nothing() -> None:
    for count in (0, 1):
        result = throughput(noisy(count, 0.5, 0.01, 4))
        assert (result.verdict, result.pairs_used) == (Verdict.MORE, 0)
        assert result.metrics[0].p_value is None
        assert result.metrics[0].interval is None
        assert result.metrics[0].slowdown is None


def test_undecided_means_more_between_looks_and_inconclusive_at_the_last() -> None:
    pairs = [(100.0, 130.0), (100.0, 70.0)] * 8
    between = [throughput(pairs[:n]) for n in (2, 3, 6, 7, 15)]
    assert [one.pairs_used for one in between] == [2, 3, 6, 6, 12]
    assert {one.verdict for one in between} == {Verdict.MORE}
    assert throughput(pairs).verdict is Verdict.INCONCLUSIVE


def test_pairs_after_the_deciding_look_change_nothing() -> None:
    pairs = noisy(5, 1.0, 0.001, 5)
    assert throughput(pairs).verdict is Verdict.PASS
    assert throughput([*pairs, (100.0, 10.0), (100.0, 9.0)]) == throughput(pairs)


def test_launches_that_differ_little_decide_sooner() -> None:
    lost = [(100.0, 91.0), (100.0, 91.6), (100.0, 91.3), (100.0, 91.2)]
    assert throughput(lost).verdict is Verdict.REGRESSION
    assert throughput(lost, error=ROUGH).verdict is Verdict.MORE
    quiet, rough = throughput(SAME), throughput(SAME, error=ROUGH)
    assert quiet.verdict is rough.verdict is Verdict.PASS
    assert quiet.pairs_used < rough.pairs_used


def test_turns_that_disagree_ask_for_more_pairs() -> None:
    assert throughput(SAME).verdict is Verdict.PASS
    assert throughput(SAME, error=0.05).verdict is Verdict.MORE


def test_pairs_that_agree_by_chance_are_not_believed_to_be_that_exact() -> None:
    assert throughput([(100.0, 96.5)] * 3).verdict is Verdict.MORE
    assert throughput([(1000.0, 951.0)] * 8).verdict is not Verdict.PASS


def test_live_pairs_and_launches_in_turn_count_together() -> None:
    pairs = SAME[:4]
    live, mixed, in_turn = (
        judge([Gated(Metric.THROUGHPUT, pairs, 0.05, errors)], GatePlan((4,))).metrics[0].interval
        or (0, 0)
        for errors in ([QUIET / 2] * 4, [QUIET / 2] * 2 + [None] * 2, [None] * 4)
    )
    widths = [high - low for low, high in (live, mixed, in_turn)]
    assert widths == sorted(widths)


def test_live_pairs_of_a_gpu_that_is_held_up_are_less_sure() -> None:
    held_up: tuple[tuple[bool, ...], ...] = ((), (True, False, False, False), (True,) * 4)
    gated = [Gated(Metric.THROUGHPUT, SAME[:4], 0.05, [0.005] * 4, loose) for loose in held_up]
    sds = [judge([one], GatePlan((4,))).metrics[0].pair_sd or 0.0 for one in gated]
    assert sds[0] < sds[1] < sds[2]
    assert [judge([one]).verdict for one in (gated[0], gated[2])] == [Verdict.PASS, Verdict.MORE]


# -- figures ---------------------------------------------------------------------------------------


def test_a_look_says_what_all_pairs_so_far_say_whatever_earlier_ones_said() -> None:
    """Bounds of earlier looks would cut off its interval, and clip its estimate to that."""
    pairs = [*[(100.0, 96.5)] * 3, *[(100.0, 60.0)] * 3]
    (early,), (late,) = throughput(pairs[:3]).metrics, throughput(pairs).metrics
    logs = [math.log(before / now) for before, now in pairs]
    assert late.slowdown == pytest.approx(1 - math.exp(-mean(logs)))
    assert early.interval is not None
    assert late.interval is not None
    assert late.slowdown > early.interval[1]
    assert late.interval[0] < late.slowdown < late.interval[1]


def test_every_pair_counts_and_none_is_clipped() -> None:
    pairs = [*[(100.0, 100.0)] * 15, (100.0, 20.0)]
    (metric,) = throughput(pairs, GatePlan(looks=(16,))).metrics
    assert metric.slowdown == pytest.approx(1 - 0.2 ** (1 / 16))


def test_the_p_value_agrees_with_the_interval_and_so_with_the_verdict() -> None:
    verdicts = set()
    for seed in range(300):
        result = throughput(noisy(16, 0.96, 0.02, seed))
        (metric,) = result.metrics
        assert metric.interval is not None
        assert metric.p_value is not None
        assert (metric.p_value < 0.01) == (metric.interval[0] > 0.01)
        proven = metric.p_value < 0.01 and metric.interval[1] >= 0.05
        assert proven == (result.verdict is Verdict.REGRESSION)
        verdicts.add(result.verdict)
    assert verdicts == {Verdict.PASS, Verdict.REGRESSION, Verdict.INCONCLUSIVE}


def test_lost_throughput_and_added_step_time_are_the_same_loss() -> None:
    pairs = noisy(16, 0.91, 0.01, 6)
    rates = throughput(pairs)
    flipped = [(1 / before, 1 / now) for before, now in pairs]
    times = judge([Gated(Metric.STEP_TIME, flipped, 0.05, [QUIET] * len(flipped))])
    assert times.verdict is rates.verdict is Verdict.REGRESSION
    assert times.metrics[0].slowdown == pytest.approx(rates.metrics[0].slowdown)
    assert times.metrics[0].interval == pytest.approx(rates.metrics[0].interval)


def test_memory_counts_by_its_growth_and_equal_peaks_decide_soon() -> None:
    assert Metric.PEAK_MEMORY.default_threshold == 0.01
    for now, verdict in ((1000, Verdict.PASS), (1050, Verdict.REGRESSION)):
        figures = [(1000.0, float(now))] * 4
        result = judge([Gated(Metric.PEAK_MEMORY, figures, 0.01)])
        assert result.verdict is verdict
        (metric,) = result.metrics
        assert metric.slowdown == pytest.approx(now / 1000 - 1)


def test_each_metric_has_the_prior_of_the_way_that_it_is_measured() -> None:
    assert assumed_sd(Metric.PEAK_MEMORY, live=False) == MEMORY_SD
    assert {assumed_sd(m, live=True) for m in (Metric.STEP_TIME, Metric.THROUGHPUT)} == {LIVE_SD}
    assert assumed_sd(Metric.THROUGHPUT, live=False) == IN_TURN_SD
    assert assumed_sd(Metric.ENERGY, live=False) == IN_TURN_SD


@pytest.mark.parametrize("figure", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("side", ["baseline", "current"])
def test_a_figure_that_is_none_is_an_error_of_the_benchmark(figure: float, side: str) -> None:
    bad = (figure, 100.0) if side == "baseline" else (100.0, figure)
    with pytest.raises(GpurunError, match=rf"{side} in pair 3") as caught:
        throughput([(100.0, 100.0)] * 2 + [bad])
    assert caught.value.code is ExitCode.BENCHMARK_FAILED
    assert caught.value.todo


# -- several metrics -------------------------------------------------------------------------------


def test_all_metrics_must_pass_and_one_regression_is_enough() -> None:
    same, noisier = noisy(16, 1.0, 0.002, 7), noisy(16, 1.0, 0.015, 8)
    grown = [(before, 1.1 * before) for before, _ in same]
    good = Gated(Metric.THROUGHPUT, same, 0.05, [QUIET] * len(same))
    memory = Gated(Metric.PEAK_MEMORY, grown, 0.01)
    result = judge([good, memory])
    assert result.verdict is Verdict.REGRESSION
    assert [m.metric for m in result.regressed] == [Metric.PEAK_MEMORY]
    both = judge([good, Gated(Metric.ENERGY, noisier, 0.05)])
    alone = judge([good])
    assert both.verdict is Verdict.PASS
    assert both.pairs_used > alone.pairs_used


def test_metrics_share_the_error_of_a_false_alarm_but_not_that_of_a_false_pass() -> None:
    gated = [Gated(Metric.THROUGHPUT, noisy(4, 0.98, 0.01, 9), 0.05, [QUIET] * 4)] * 2
    alone, shared = judge(gated[:1]).metrics[0], judge(gated).metrics[0]
    assert alone.interval is not None
    assert shared.interval is not None
    assert shared.interval[0] < alone.interval[0]
    assert shared.interval[1] == alone.interval[1]
    assert alone.p_value is not None
    assert shared.p_value == pytest.approx(min(1.0, 2 * alone.p_value))


# -- the plan --------------------------------------------------------------------------------------


def test_the_last_look_is_at_the_most_pairs_allowed() -> None:
    assert LOOKS[:4] == (2, 3, 4, 5)
    assert GatePlan.up_to(16) == DEFAULT
    assert GatePlan.up_to(2).looks == (2,)
    assert GatePlan.up_to(9).looks == (2, 3, 4, 5, 6, 8, 9)
    assert GatePlan.up_to(40).looks == (*LOOKS, 24, 32, 40)
    with pytest.raises(GpurunError, match="before the first look, which takes 2 pairs"):
        GatePlan.up_to(1)


@pytest.mark.parametrize("max_pairs", [2, 3, 7, 16, 40])
def test_the_errors_of_all_looks_add_up_to_what_the_plan_may_err(max_pairs: int) -> None:
    plan = GatePlan.up_to(max_pairs)
    lower, upper = zip(*(plan.levels(look) for look in plan.looks), strict=True)
    assert math.fsum(lower) == pytest.approx(0.01)
    assert math.fsum(upper) == pytest.approx(0.045), "below SPEC's 5 %: see the simulated rates"


def test_the_last_look_spends_the_most() -> None:
    lower, upper = zip(*(DEFAULT.levels(look) for look in DEFAULT.looks), strict=True)
    assert lower[-1] > 10 * max(lower[:-1])
    assert upper[-1] > 4 * max(upper[:-1])


# -- rates, by simulation --------------------------------------------------------------------------

HARDEST = [
    ("live", "ar"),
    ("live", "biased"),
    ("loose", "ar"),
    ("loose", "biased"),
    ("in turn", "ar"),
    ("in turn", "walk"),
    ("mixed", "ar"),
]
RUNS = 600


def rates(kind: str, multiple: float, law: str, slowdown: float) -> Verdicts:
    return simulate_gate(Case(kind, multiple, law), slowdown, RUNS, seed=1)


@pytest.mark.parametrize(("kind", "law"), HARDEST)
def test_the_bars_hold_at_four_times_the_prior(kind: str, law: str) -> None:
    same = rates(kind, 4.0, law, 0.0).counts[Verdict.REGRESSION]
    assert wilson(same, RUNS)[0] <= FALSE_REGRESSIONS
    for slowdown in (0.05, 0.08):
        passed = rates(kind, 4.0, law, slowdown).counts[Verdict.PASS]
        assert wilson(passed, RUNS)[0] <= FALSE_PASSES


def test_full_levels_at_every_look_would_break_the_same_bars(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate.GatePlan, "levels", lambda *_: (0.01, 0.05))
    same = rates("loose", 4.0, "ar", 0.0).counts[Verdict.REGRESSION]
    assert wilson(same, RUNS)[0] > FALSE_REGRESSIONS
    passed = rates("loose", 4.0, "ar", 0.05).counts[Verdict.PASS]
    assert wilson(passed, RUNS)[0] > FALSE_PASSES


def test_losses_are_caught_and_equal_trees_pass_where_launches_differ_as_assumed() -> None:
    same = rates("live", 1.0, "gauss", 0.0)
    assert same.counts[Verdict.PASS] == RUNS
    assert same.pairs < 7 * RUNS
    threshold = rates("live", 1.0, "gauss", 0.05)
    assert threshold.counts[Verdict.REGRESSION] >= 0.95 * RUNS
    more = rates("live", 1.0, "gauss", 0.08)
    assert more.counts[Verdict.REGRESSION] == RUNS
    assert more.pairs < 8 * RUNS
