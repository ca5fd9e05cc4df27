"""Loss curves of both sides: what differs, what may be chance, and which exit code follows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpurun.bench.compare.pair_runner import Findings
from gpurun.bench.unfinished import Unfinished, worst_with_others
from gpurun.pairs.engine import Pair
from gpurun.pairs.gate import DEFAULT
from gpurun.records.bench.benchmark import LossCurve
from gpurun.records.bench.comparison import Comparison
from gpurun.records.codec import from_json, to_json
from gpurun.report.comparison_text import comparison_lines, comparison_markdown
from gpurun.same.curve_distances import compare_training
from gpurun.stats.loss_curve_points import blocks, curve_of
from tests.unit.bench_launches import BENCHMARK, launch
from tests.unit.test_bench_document import document

NAN = math.inf
"""As the event files have a loss that is not finite."""


def falling(speed: float = 1.0, steps: int = 100) -> list[float]:
    """Losses of noisy batches, the same ones in every launch."""
    batches = random.Random(7)
    return [
        (0.3 + 2 * math.exp(-0.01 * speed * step)) * (1 + batches.gauss(0, 0.1))
        for step in range(steps)
    ]


def curve(losses: list[float]) -> LossCurve:
    made = curve_of(losses)
    assert made is not None
    return made


def noisy(draw: random.Random, size: float, speed: float = 1.0) -> LossCurve:
    return curve([loss * (1 + draw.gauss(0, size)) for loss in falling(speed)])


DRAWS = random.Random(5)
NOISY = [noisy(DRAWS, 0.01, 1.0 + (number >= 3)) for number in range(6)]
"""Three launches of each of two trainings that do not repeat themselves."""


# -- the curve -------------------------------------------------------------------------------------


def test_a_curve_is_small_however_long_the_training_is() -> None:
    assert len(curve([1.0] * 5000).points) < 150
    assert len(curve([1.0] * 1_000_000).points) < 270


def test_the_points_of_a_short_curve_are_the_first_ones_of_a_long_one() -> None:
    losses = falling(steps=700)
    short, long = curve(losses[:90]), curve(losses)
    assert long.points[: len(short.points)] == short.points
    assert short.points[:16] == tuple(float(f"{loss:.9g}") for loss in losses[:16])
    assert [b - a for a, b in blocks(80)] == [1] * 16 + [2] * 16 + [4] * 8


def test_a_curve_ends_before_the_first_loss_that_is_not_finite() -> None:
    found = curve([1.0, 0.9, NAN, 0.7])
    assert (found.points, found.nonfinite_step) == ((1.0, 0.9), 3)


def test_losses_that_nobody_saw_are_no_curve() -> None:
    assert curve_of([math.nan] * 20) is None
    assert curve([1.0, math.nan, 0.5]).points == (1.0, None, 0.5)


# -- the judgement ---------------------------------------------------------------------------------


def test_equal_curves_show_no_difference() -> None:
    found = compare_training([curve(falling())] * 4, [curve(falling())] * 4)
    assert (found.differs, found.loss_deviation, found.repeat_deviation) == (False, 0.0, 0.0)


@pytest.mark.parametrize("speed", [2.0, 0.0, 1.01])
def test_another_curve_than_that_of_equal_repeats_differs(speed: float) -> None:
    found = compare_training([curve(falling())] * 4, [curve(falling(speed))] * 4)
    assert (found.differs, found.from_step) == (True, 2)
    assert "one more random number" in found.told


@pytest.mark.parametrize("size", [1e-6, 1e-3, 0.05])
def test_what_repeats_differ_by_is_no_difference_and_twice_the_rate_is_one(size: float) -> None:
    draw = random.Random(3)
    for _ in range(10):
        before, same = ([noisy(draw, size) for _ in range(4)] for _ in range(2))
        assert compare_training(before, same).differs is False
        twice = [noisy(draw, size, 2.0) for _ in range(4)]
        assert compare_training(before, twice).differs is True


def test_losses_in_coarse_steps_are_called_different_once_in_35_at_most() -> None:
    """Each step's loss is one of two neighbours of bfloat16: then single steps often separate
    equal launches completely, and a t test alone would be deceived."""
    draw, told = random.Random(5), 0
    for _ in range(100):
        sides = [
            [curve([1.0 + 0.004 * draw.randint(0, 1) for _ in range(100)]) for _ in range(4)]
            for _ in range(2)
        ]
        told += compare_training(*sides).differs is True
    assert told <= 8


def test_more_launches_than_can_be_split_in_all_ways_are_judged_too() -> None:
    draw = random.Random(11)
    before, same = ([noisy(draw, 0.05) for _ in range(16)] for _ in range(2))
    assert compare_training(before, same).differs is False
    assert compare_training(before, [noisy(draw, 0.05, 1.3) for _ in range(16)]).differs is True


def test_curves_of_unequal_numbers_and_lengths_are_judged_where_they_overlap() -> None:
    before, now = [curve(falling(steps=60))] * 4, [curve(falling())] * 5
    assert compare_training(before, now).differs is False
    assert compare_training(before, [curve(falling(2.0))] * 5).differs is True


def test_a_loss_that_stops_to_be_finite_is_named_with_its_step() -> None:
    broken = [*falling()[:6], NAN, *falling()[7:]]
    found = compare_training([curve(falling())] * 4, [curve(broken)] * 4)
    assert (found.differs, found.nonfinite_from_step) == (True, 7)
    assert found.told == "the loss is not finite from step 7 on; the baseline's is finite"
    mended = compare_training([curve(broken)] * 4, [curve(falling())] * 4)
    assert (mended.differs, mended.nonfinite_from_step) == (True, None)


def test_a_loss_that_is_lost_is_seen_in_few_launches_too() -> None:
    sound, lost = curve(falling()), curve([*falling()[:6], NAN])
    found = compare_training([sound] * 2, [lost] * 2)
    assert (found.differs, found.nonfinite_from_step) == (True, 7)
    assert compare_training([sound], [lost]).differs is None


def test_a_launch_that_ended_before_the_others_lose_their_loss_does_not_speak_for_them() -> None:
    """Launches that take turns train for unequal numbers of steps."""
    sound, lost = curve(falling()), curve([*falling()[:60], NAN])
    short = curve(falling(steps=40))
    found = compare_training([short, sound, sound, sound], [short, lost, lost, lost])
    assert (found.differs, found.nonfinite_from_step) == (True, 61)
    assert compare_training([short] * 4, [short, lost, lost, lost]).nonfinite_from_step is None


def test_a_loss_that_is_lost_in_most_launches_is_another_training() -> None:
    sound, lost = curve(falling()), curve([*falling()[:6], NAN])
    for baseline in ([sound] * 6, [*[sound] * 5, lost]):
        found = compare_training(baseline, [lost] * 6 if lost in baseline else [*[lost] * 5, sound])
        assert (found.differs, found.nonfinite_from_step) == (True, None)
        assert "no difference" not in found.told


def test_launches_that_end_in_nan_now_and_then_are_told_and_prove_nothing() -> None:
    fine, broken = curve(falling()), curve([*falling()[:50], NAN])
    found = compare_training([fine] * 4, [fine, fine, broken, fine])
    assert (found.differs, found.nonfinite_from_step) == (None, None)
    assert "in 0 of 4 launches of the baseline and in 1 of 4 of the current side" in found.told


def test_a_loss_that_is_not_finite_on_both_sides_is_no_regression() -> None:
    broken = [curve([*falling()[:50], NAN])] * 4
    found = compare_training(broken, broken)
    assert (found.differs, found.nonfinite_from_step) == (False, None)
    assert "in 4 of 4 launches of the baseline" in found.told


@pytest.mark.parametrize(
    ("baseline", "current", "why"),
    [
        ([None] * 4, [None] * 4, "no loss was seen"),
        ([], [], "no pair of launches was completed"),
        ([curve(falling())] * 4, [None] * 4, "in 4 of 4 launches of the baseline and in 0 of 4"),
        (NOISY[:3], NOISY[3:], "only 3 launches of a side, "),
    ],
)
def test_nothing_is_claimed_where_nothing_can_be_compared(
    baseline: list[LossCurve | None], current: list[LossCurve | None], why: str
) -> None:
    found = compare_training(baseline, current)
    assert found.differs is None
    assert found.told.startswith("the training was not compared: ")
    assert why in found.told


# -- the exit code ---------------------------------------------------------------------------------


def found(rates: list[float], speed: float, broken: bool = False) -> Findings:
    """Pairs of these current rates, whose current side learns at another speed."""
    losses = falling(speed)
    now = curve([*losses[:20], NAN] if broken else losses)
    pairs = [
        Pair(
            replace(launch("baseline", 1000.0), loss_curve=curve(falling())),
            replace(launch("current", rate), loss_curve=now),
        )
        for rate in rates
    ]
    findings = Findings(pairs=pairs, gated=dict(BENCHMARK.thresholds))
    findings.result = findings.judged(DEFAULT)
    return findings


EQUAL, SLOWER, NOISY = [1000.0] * 4, [800.0] * 4, [1000.0, 800.0, 1200.0, 900.0] * 4
Make = Callable[..., Comparison]


@pytest.mark.parametrize(
    ("rates", "speed", "broken", "fails", "code", "verdict"),
    [
        (EQUAL, 1.0, False, True, 0, "pass"),
        (EQUAL, 2.0, False, False, 0, "pass"),
        (EQUAL, 2.0, False, True, 6, "training_differs"),
        (NOISY, 2.0, False, False, 3, "inconclusive"),
        (NOISY, 2.0, False, True, 6, "training_differs"),
        (SLOWER, 2.0, False, True, 1, "regression"),
        (EQUAL, 1.0, True, False, 1, "regression"),
        (EQUAL, 1.0, True, True, 1, "regression"),
        (NOISY, 1.0, True, False, 1, "regression"),
    ],
)
def test_the_exit_code_is_1_before_6_before_3(
    rates: list[float], speed: float, broken: bool, fails: bool, code: int, verdict: str
) -> None:
    one = document(found(rates, speed, broken), fail_on_training_change=fails)
    assert (one.exit_code, one.verdict) == (code, verdict)
    assert one.training_differs is (speed != 1.0 or broken)
    assert from_json(Comparison, to_json(one)) == one


def test_a_benchmark_that_failed_comes_before_its_training() -> None:
    unfinished = Unfinished("failed", 5, "it failed", "see its output")
    one = document(
        found(EQUAL, 1.0, broken=True), unfinished=unfinished, fail_on_training_change=True
    )
    assert (one.exit_code, one.verdict, one.regression_detected) == (5, "failed", False)


def test_of_several_benchmarks_the_code_is_the_worst_one() -> None:
    crashed = document(found(EQUAL, 1.0), unfinished=Unfinished("failed", 5, "it failed"))
    missing = document(found(EQUAL, 1.0), unfinished=Unfinished("failed", 4, "no baseline"))
    slower, undecided = document(found(SLOWER, 1.0)), document(found(NOISY, 1.0))
    other = document(found(EQUAL, 2.0), fail_on_training_change=True)
    worst_first = [crashed, slower, other, missing, undecided, document(found(EQUAL, 1.0))]
    for number, one in enumerate(worst_first):
        assert worst_with_others([*worst_first[:number:-1], one]).exit_code == one.exit_code


def test_a_loss_that_is_not_finite_is_said_plainly() -> None:
    one = document(found(EQUAL, 1.0, broken=True))
    told = "the loss is not finite from step 21 on; the baseline's is finite"
    lines = comparison_lines(one)
    assert lines[-2].startswith(f"REGRESSION train|er: {told}")
    assert lines[-1] == f"look at commit bbbbbbbbb: {told}"
    assert one.regression_detected


def test_another_training_is_a_warning_on_the_terminal_and_in_markdown() -> None:
    one = document(found(EQUAL, 2.0))
    warned = [line for line in comparison_lines(one) if line.startswith("warning: the training")]
    assert len(warned) == 1
    assert f"**{warned[0]}**" in comparison_markdown(one)
    assert one.recommendation == warned[0].removeprefix("warning: ")
    same = document(found(EQUAL, 1.0))
    assert "no difference in training was seen in 4 and 4 loss curves" in comparison_markdown(same)
    assert "warning" not in comparison_markdown(same)


@pytest.mark.parametrize(
    ("speed", "differs", "step"), [(1.0, False, None), (1.0 + 1e-9, False, None), (1.3, True, 2)]
)
def test_launches_that_repeat_each_other_are_compared_after_two(
    speed: float, differs: bool, step: int | None
) -> None:
    found = compare_training([curve(falling())] * 2, [curve(falling(speed))] * 2)
    assert (found.differs, found.from_step) == (differs, step)
    draw = random.Random(3)
    some = [noisy(draw, 0.01) for _ in range(4)]
    assert compare_training(some[:2], some[2:]).differs is None, "one of them may be chance"
