"""Rungs: the chosen settings up to each stage, one launch each, as many as there is time for."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpurun.pairs.estimate import LIVE_SD, LOOSE_SD
from gpurun.records.tuning import TrialPurpose
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.rungs import Rung, Stages, _step, losing, measure_rungs, told_apart, unmeasured
from gpurun.tuner.tuning_trial import Trial
from tests.unit.bench_launches import on_gpu
from tests.unit.tuner_searches import Planted
from tests.unit.tuner_trials import trial

ORDER = ["data", "transfer", "precision", "kernels", "compile"]
GAINS = {"data": 2.0, "transfer": 1.1, "precision": 1.5, "kernels": 1.2, "compile": 1.3}


def knob_of(name: str) -> Planted:
    return Planted(name, stage=name.partition("_")[0])


def stages(*names: str, base: Mapping[str, Any] | None = None) -> Stages:
    """Settings of one knob a stage, named after it, given in another order than the ladder's."""
    base = base or {}
    chosen = {**base, **dict.fromkeys(reversed(names), 1)}
    return Stages(base, chosen, knob_of)


def finalist(*gains: float, error: float = 0.005) -> Finalist:
    found = Finalist("chosen", {})
    found.pairs = [(100.0, 100.0 * gain) for gain in gains]
    found.errors = [error] * len(gains)
    return found


class Launches:
    """Launches in turns with the reference, each of ten seconds."""

    def __init__(self, *, budget: float = 1e6, live: bool = True) -> None:
        self.asked: list[list[str]] = []
        self._budget, self._live = budget, live

    def __call__(self, settings: Mapping[str, Any]) -> Trial:
        self.asked.append(sorted(settings, key=["memory_x", *ORDER].index))
        gain = math.prod(GAINS.get(name, 1.0) for name in settings)
        found = trial(100.0 * gain, settings, seconds=10.0)
        turns = gain if self._live else None
        record = replace(found.record, gain_over_reference=turns, gain_error=0.01)
        return replace(found, record=record)

    def room(self, seconds: float) -> bool:
        return self._budget - 10.0 * len(self.asked) >= seconds


def measured(by_stage: Stages, launches: Launches, top: Finalist | None = None) -> dict[str, float]:
    """The rungs with their speed over the script as it is."""
    *_, rungs = measure_rungs(
        by_stage,
        top or finalist(5.1, 5.2, 5.15),
        launches,
        launches.room,
        lambda trial: 0.001,
        trial(100.0),
    )
    return {rung.stage: math.exp(rung.log) for rung in rungs}


def test_each_rung_holds_all_settings_up_to_its_stage_and_the_top_is_the_proofs() -> None:
    launches = Launches()
    rungs = measured(stages(*ORDER), launches)
    assert sorted(launches.asked, key=len) == [ORDER[:n] for n in range(1, 5)]
    assert list(rungs) == ORDER
    assert [round(rung, 3) for rung in rungs.values()][:4] == [2.0, 2.2, 3.3, 3.96]
    assert rungs["compile"] == pytest.approx(5.15, rel=0.01), "no launch of its own"


def test_the_top_is_what_the_proof_says_where_its_last_pair_is_not_looked_at_yet() -> None:
    top = finalist(*[2.0] * 6, 3.0)
    rungs = measured(stages("data"), Launches(), top)
    assert rungs["data"] == pytest.approx(top.look().speedup)
    assert rungs["data"] == pytest.approx(2.0)


def test_the_middle_comes_first_then_the_middle_of_the_gap_that_gains_most() -> None:
    launches = Launches()
    measured(stages(*ORDER), launches)
    assert [settings[-1] for settings in launches.asked] == [
        "precision", "transfer", "data", "kernels",
    ]  # fmt: skip


def test_seen_of_a_gpt_kernels_and_compile_gain_most_and_are_told_apart_next() -> None:
    """x2.55 up to precision, x8.43 in all: a launch of the transfer stage alone said nothing."""
    launches = Launches(budget=20.0)
    rungs = measured(stages(*ORDER[1:]), launches, finalist(8.4, 8.45))
    assert list(rungs) == ["precision", "kernels", "compile"]


def test_a_rung_that_failed_is_not_asked_for_again_in_its_gap() -> None:
    class Failing(Launches):
        def __call__(self, settings: Mapping[str, Any]) -> Trial:
            found = super().__call__(settings)
            return trial(None, settings) if len(settings) == 3 else found

    launches = Failing()
    assert list(measured(stages(*ORDER), launches)) == ["data", "transfer", "kernels", "compile"]
    assert len(launches.asked) == 4


def test_half_of_the_time_gives_half_of_the_rungs() -> None:
    launches = Launches(budget=20.0)
    assert list(measured(stages(*ORDER), launches)) == ["transfer", "precision", "compile"]
    without = Launches(budget=-1.0)
    assert list(measured(stages(*ORDER), without)) == ["compile"]
    assert without.asked == []


def test_settings_without_which_the_script_does_not_run_belong_to_all_rungs_and_are_none() -> None:
    launches = Launches()
    by_stage = stages("data", "compile", base={"memory_x": 1})
    assert list(measured(by_stage, launches)) == ["data", "compile"]
    assert launches.asked == [["memory_x", "data"]]
    assert by_stage.changes(["data"]) == {"data": 1}


def test_another_value_of_what_makes_the_script_fit_is_a_change() -> None:
    by_stage = Stages({"memory_x": 1}, {"memory_x": 2}, knob_of)
    assert by_stage.names == ["memory"]
    assert by_stage.up_to("memory") == {"memory_x": 2}


def test_what_took_turns_in_the_search_already_is_not_launched_again() -> None:
    """A set that failed was tried in parts: some of them are rungs."""
    by_stage, launches = stages("data", "precision", "compile"), Launches()
    screen = Launches()(by_stage.up_to("data"))
    assert unmeasured(by_stage, [screen]) == ["precision"]
    *_, rungs = measure_rungs(
        by_stage,
        finalist(3.9, 3.9),
        launches,
        launches.room,
        lambda trial: 0.001,
        trial(100.0),
        [screen],
    )
    assert launches.asked == [["data", "precision"]]
    assert [(rung.stage, rung.trial is screen) for rung in rungs] == [
        ("data", True), ("precision", False), ("compile", False),
    ]  # fmt: skip


def test_a_single_stage_needs_no_launch() -> None:
    launches = Launches()
    assert list(measured(stages("data"), launches)) == ["data"]
    assert launches.asked == []


def test_a_rung_that_fails_is_left_out() -> None:
    class Failing(Launches):
        def __call__(self, settings: Mapping[str, Any]) -> Trial:
            super().__call__(settings)
            return trial(None, settings)

    assert list(measured(stages(*ORDER), Failing())) == ["compile"]


def test_without_turns_a_rung_is_compared_with_the_script_as_it_is_in_the_proof() -> None:
    rungs = measured(stages("data", "compile"), Launches(live=False))
    assert rungs["data"] == pytest.approx(2.0)


def test_a_rung_is_as_sure_as_launches_are_alike_in_the_proof() -> None:
    def half(*gains: float, live: bool = True, error: float = 0.005) -> float:
        launches = Launches(live=live)
        *_, (first, _) = measure_rungs(
            stages("data", "compile"),
            finalist(*gains, error=error),
            launches,
            launches.room,
            lambda trial: None,
            trial(100.0),
        )
        return first.half

    assert 0.0 < half(5.1, 5.2, 5.15) < half(4.0, 6.5, 5.15), "launches that differ more"
    assert half(5.1, 5.1, 5.1) < half(5.1, 5.1, 5.1, live=False), "and minutes apart"
    unsure = half(5.1, 5.1, 5.1, error=0.05)
    assert unsure == half(5.1, 5.1, 5.1), "what a pair's own turns leave open is that pair's alone"


def test_two_pairs_of_a_wide_interval_do_not_hide_the_rungs_below_them() -> None:
    """x9.30 (4.24 to 20.4) of two pairs: the rows below it are as sure as launches are alike."""
    top = finalist(9.56, 8.43, error=0.1)
    *_, (first, last) = measure_rungs(
        stages("data", "compile"),
        top,
        launches := Launches(),
        launches.room,
        lambda trial: None,
        trial(100.0),
    )
    assert first.half < 0.1 < last.half
    assert [rung.stage for rung in told_apart([first, last])] == ["data", "compile"]


def test_pairs_after_the_rungs_make_all_rows_as_precise_as_they_are_themselves() -> None:
    launches = Launches()

    def measured(top: Finalist, *known: Trial) -> list[Rung]:
        deviation, alone = lambda trial: 0.001, trial(100.0)
        by_stage = stages("data", "compile")
        *_, found = measure_rungs(by_stage, top, launches, launches.room, deviation, alone, known)
        return found

    before, more = measured(finalist(4.0, 6.5)), finalist(4.0, 6.5, 5.15, 5.1, 5.2)
    assert before[0].trial is not None
    after = measured(more, before[0].trial)
    assert [rung.stage for rung in after] == ["data", "compile"]
    assert (after[0].log, after[0].loss_deviation) == (before[0].log, 0.001)
    assert all(new.half < old.half for new, old in zip(after, before, strict=True))
    assert math.exp(after[1].log) == pytest.approx(more.look().speedup)
    assert len(launches.asked) == 1, "nothing is launched for it"


# -- what chance does ------------------------------------------------------------------------------

ALIKE = [(LIVE_SD, 97.0), (LOOSE_SD, 25.0)]
"""What launches differ by, and how busy their GPU is."""
RUNS = 600


def ladder(rng: random.Random, sd: float, busy: float, logs: Mapping[str, float]) -> list[Rung]:
    """The rungs of stages whose steps gain so much, each launch with its own luck; turns err by a
    third of that, and two pairs proved the top."""
    own, turns, by_stage = sd / math.sqrt(2), sd / 3, stages(*logs)
    luck_of_reference = rng.gauss(0, own)
    figures = on_gpu(busy)

    def launch(settings: Mapping[str, Any]) -> Trial:
        found = trial(100.0, settings)
        assert found.result is not None
        log = sum(logs[name] for name in settings) + rng.gauss(0, own) - luck_of_reference
        gain = math.exp(log + rng.gauss(0, turns))
        record = replace(
            found.record, gain_over_reference=gain, gain_error=turns, purpose=TrialPurpose.RUNG
        )
        return replace(found, record=record, result=replace(found.result, **figures))

    top = Finalist("chosen", {})
    for _ in range(2):
        log = sum(logs.values()) + rng.gauss(0, sd) + rng.gauss(0, turns)
        top.paired(100.0, math.exp(log), turns, busy < 90.0)
    *_, found = measure_rungs(
        by_stage, top, launch, lambda seconds: True, lambda trial: None, trial(100.0)
    )
    return found


@pytest.mark.parametrize(("sd", "busy"), ALIKE)
def test_of_equal_stages_one_leaves_in_few_ladders(sd: float, busy: float) -> None:
    rng, equal = random.Random(1), dict.fromkeys(ORDER, 0.0)
    left = sum(bool(losing(ladder(rng, sd, busy, equal), ORDER)) for _ in range(RUNS))
    assert left <= 0.05 * RUNS


@pytest.mark.parametrize(("sd", "busy"), ALIKE)
def test_a_stage_that_loses_five_deviations_leaves_alone(sd: float, busy: float) -> None:
    rng, logs = random.Random(2), {**dict.fromkeys(ORDER, 5 * sd), "precision": -5 * sd}
    found = [losing(ladder(rng, sd, busy, logs), ORDER) for _ in range(RUNS)]
    assert found.count(["precision"]) > 0.9 * RUNS


@pytest.mark.parametrize(("sd", "busy"), ALIKE)
def test_a_stage_that_gains_four_deviations_is_a_row_of_its_own(sd: float, busy: float) -> None:
    """The last one gains more: the proof of two pairs is not as sure as a row."""
    rng, logs = random.Random(3), {**dict.fromkeys(ORDER, 4 * sd), "compile": 12 * sd}
    found = [told_apart(ladder(rng, sd, busy, logs)) for _ in range(RUNS)]
    for stage in ORDER:
        assert sum(stage in [rung.stage for rung in rows] for rows in found) > 0.8 * RUNS


def test_rungs_beside_one_reference_share_its_luck() -> None:
    def step(purpose: TrialPurpose) -> tuple[float, float, float]:
        class Beside(Launches):
            def __call__(self, settings: Mapping[str, Any]) -> Trial:
                found = super().__call__(settings)
                return replace(found, record=replace(found.record, purpose=purpose))

        by_stage, launches = stages("data", "transfer", "compile"), Beside()
        *_, found = measure_rungs(
            by_stage, finalist(5.1, 5.1), launches, launches.room, lambda _: None, trial(100.0)
        )
        first, second, _ = found
        low, high = _step(second, first)["step_speedup_confidence_interval"]
        return first.half, second.half, math.log(high / low) / 2

    first, second, half = step(TrialPurpose.RUNG)
    assert half == pytest.approx(1.96 * math.hypot(LIVE_SD, 0.01, 0.01), rel=0.01)
    assert step(TrialPurpose.SCREEN)[2] == pytest.approx(math.hypot(first, second)), "of a search"


def rungs(*logs: float, half: float = 0.05) -> list[Rung]:
    return [Rung(stage, log, half) for stage, log in zip(ORDER, logs, strict=False)]


def test_a_stage_loses_if_its_step_lies_wholly_below_one() -> None:
    assert losing(rungs(0.7, 0.5, 0.9), ORDER) == ["transfer"]
    assert losing(rungs(0.7, 0.65, 0.9), ORDER) == [], "it may as well gain"
    assert losing(rungs(-0.2, 0.9), ORDER) == ["data"]
    assert losing(rungs(0.9, 0.8, 0.7, half=math.inf), ORDER) == []
