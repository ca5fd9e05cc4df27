"""The proof takes pairs until its test settles, as time allows, and outlives what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gpurun.pairs import engine
from gpurun.pairs.engine import PairOutcome
from gpurun.pairs.gain import MOST_PAIRS
from gpurun.records.tuning import PAIR_SIDES, TrialPurpose
from gpurun.tuner import phases
from gpurun.tuner.phases import LATE_SHARE
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.proof.proof_launches import ProofLaunches
from gpurun.tuner.tuning_findings import TuningEnded
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.unit.bench_launches import on_gpu
from tests.unit.tuner_proofs import (
    FAILED,
    IN_TURN,
    PORT,
    A,
    StandIn,
    chosen,
    launches,
    timed_out,
)

UNSURE = (1.0, 1.25, 0.9)
"""Pairs so far apart are proven early, and precise late."""


def proven(proofs: ProofLaunches, finalist: Finalist) -> tuple[Finalist, list[str], list[str]]:
    """The baseline's side of a proof of this finalist, what was decided, and what was told."""
    baseline = proofs.prove(finalist)
    view: Any = proofs.view
    return baseline, proofs.findings.decisions, view.lines


# -- when it ends ----------------------------------------------------------------------------------


def test_live_pairs_change_the_order_of_their_sides_share_a_seed_and_prove_a_large_gain() -> None:
    """What is launched second may have other luck: in every pair that would be a gain."""
    series, one = StandIn(), chosen()
    proofs = launches(series)
    baseline, decided, told = proven(proofs, one)
    assert [[side.settings for side in pair] for pair in series.pairs] == [[A, {}], [{}, A]]
    assert [[side.seed_offset for side in pair] for pair in series.pairs] == [[0, 0], [1, 1]]
    assert {side.purpose for pair in series.pairs for side in pair} == set(PAIR_SIDES)
    assert [gain / base for base, gain in one.pairs] == pytest.approx([3.0, 3.0])
    assert (len(baseline.rates), series.launched, decided) == (2, [], [])
    assert told[-1].endswith("after 2 pairs, settled")
    assert proofs.findings.proof_seconds is not None


@pytest.mark.parametrize("in_turn", ["", IN_TURN])
def test_pairs_without_a_gain_claim_none_and_leave_the_time_to_others(in_turn: str) -> None:
    series, one = StandIn(in_turn_only=in_turn, gain=1.0, scatter=(1.0, 1.004, 0.996)), chosen()
    proofs = launches(series)
    proven(proofs, one)
    assert len(one.pairs) <= 3
    assert one.done
    assert not one.look().significant
    assert proofs.findings.proof_seconds is None


def test_pairs_that_agree_with_nothing_end_with_the_last_look() -> None:
    series, one = StandIn(gain=1.05, scatter=(1.5, 0.7)), chosen()
    proven(launches(series), one)
    assert len(one.pairs) == MOST_PAIRS
    assert one.done
    assert not one.look().significant


@pytest.mark.parametrize(("active_percent", "loose"), [(97.0, False), (25.0, True)])
def test_pairs_whose_gpu_waits_are_assumed_to_differ_by_more(
    active_percent: float, loose: bool
) -> None:
    series, one, alike = StandIn(gain=1.5), chosen(), chosen()
    series.figures = on_gpu(active_percent)
    proven(launches(series), one)
    assert one.loose == [loose] * len(one.pairs)
    proven(launches(StandIn(gain=1.5)), alike)
    assert (one.estimate().pair_sd > 1.5 * alike.estimate().pair_sd) is loose


# -- time ------------------------------------------------------------------------------------------


class Clock:
    """A clock of the tuner that only launches move, by ten seconds a pair."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, series: StandIn) -> None:
        self.now = 0.0
        stand_in = SimpleNamespace(monotonic=lambda: self.now)
        for module in (phases, engine):
            monkeypatch.setattr(module, "time", stand_in)
        self._run_pair, self._series = series.run_pair, series
        monkeypatch.setattr(series, "run_pair", self._timed)

    def _timed(self, requests: tuple[TrialRequest, TrialRequest]) -> PairOutcome[Trial]:
        self.now += 10.0
        return self._run_pair(requests)

    def proofs(self, seconds: float) -> ProofLaunches:
        found = launches(self._series)
        found.phases.deadline = seconds
        found.phases.budget = seconds
        return found


@pytest.mark.parametrize(
    ("seconds", "pairs"), [(-1.0, 0), (1.0, 1), (15.0, 1), (19.0, 2), (31.0, 3)]
)
def test_a_first_pair_is_begun_anyway_and_a_later_one_if_it_ends_within_a_quarter_more(
    monkeypatch: pytest.MonkeyPatch, seconds: float, pairs: int
) -> None:
    series, one = StandIn(gain=1.05, scatter=(1.2, 0.8)), chosen()
    _, _, told = proven(Clock(monkeypatch, series).proofs(seconds), one)
    assert len(series.pairs) == pairs
    assert told[-1] == "the budget ended before the proof was complete"
    assert not one.done


@pytest.mark.parametrize(
    ("seconds", "rungs", "pairs"), [(60.0, 3, 2), (75.0, 3, 4), (60.0, 0, 5), (1e6, 3, MOST_PAIRS)]
)
def test_a_proven_gain_leaves_its_rungs_their_time_before_it_gets_more_precise(
    monkeypatch: pytest.MonkeyPatch, seconds: float, rungs: int, pairs: int
) -> None:
    """Two pairs of a ViT said x4.6 to x10.7, two more narrowed that: no stage was measured."""
    series, one = StandIn(gain=10.0, scatter=UNSURE), chosen()
    proofs = Clock(monkeypatch, series).proofs(seconds)
    proofs.prove(one, rungs)
    assert len(series.pairs) == pairs
    assert one.look().proven


def test_what_is_not_proven_yet_may_take_the_time_of_the_rungs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    series, one = StandIn(gain=1.05, scatter=(1.2, 0.8)), chosen()
    Clock(monkeypatch, series).proofs(31.0).prove(one, rungs=3)
    assert len(series.pairs) == 3


def test_after_the_rungs_the_same_proof_goes_on_with_further_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    series, one = StandIn(gain=10.0, scatter=UNSURE), chosen()
    proofs = Clock(monkeypatch, series).proofs(60.0)
    baseline = proofs.prove(one, rungs=3)
    assert proofs.prove(one) is baseline
    assert [pair[0].seed_offset for pair in series.pairs] == [0, 1, 2, 3, 4]
    assert len(baseline.rates) == len(one.pairs) == 5
    view: Any = proofs.view
    assert [line for line in view.lines if "pair" not in line] == [
        "a gain is proven: its rungs come before a narrower interval",
        "the budget ended before the proof was complete",
    ]


def test_a_pair_that_has_begun_may_take_a_quarter_of_the_budget_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of a pair is none."""
    series = StandIn()
    proven(Clock(monkeypatch, series).proofs(50.0), chosen())
    request = series.pairs[0][0]
    assert request.deadline == pytest.approx(50.0 * (1 + LATE_SHARE))
    assert request.hurry_at == pytest.approx(50.0), "then its turns end early"


def test_a_pair_that_the_end_of_the_budget_cut_off_is_no_failure_of_the_finalist() -> None:
    series, one = StandIn(in_turn_only=IN_TURN), chosen()
    proofs = launches(series)
    launch = proofs.launch

    def late(request: TrialRequest) -> Trial:
        proofs.phases.deadline -= 1e6
        return timed_out(launch(request)) if request.settings else launch(request)

    proofs.launch = late
    _, _, told = proven(proofs, one)
    assert told == ["the budget ended in the middle of a pair"]
    assert (one.failure, one.pairs) == (None, [])


# -- live or in turn -------------------------------------------------------------------------------


def test_sides_that_cannot_be_live_are_launched_in_turn_and_the_reason_is_told() -> None:
    series, one = StandIn(in_turn_only=IN_TURN), chosen()
    _, decided, _ = proven(launches(series), one)
    assert decided == [f"launches one after the other, not live pairs: {IN_TURN}"]
    order = [(side.purpose, side.seed_offset) for side in series.launched[:4]]
    baseline, candidate = PAIR_SIDES
    assert order == [(candidate, 0), (baseline, 0), (baseline, 1), (candidate, 1)]
    assert not one.live
    assert one.done


def test_each_launch_is_told_what_comes_after_it() -> None:
    """So that the processes of the next ones can start meanwhile."""
    series = StandIn(in_turn_only=IN_TURN, gain=1.05)
    proven(launches(series), chosen())
    settings = [side.settings for side in series.launched]
    assert len(settings) > 6
    for number, request in enumerate(series.launched[:6]):
        coming = settings[number + 1 : number + 4]
        assert list(request.following[: len(coming)])[:2] == coming[:2]


def test_where_no_live_pair_works_launches_take_turns_at_once() -> None:
    series, one = StandIn(), chosen()
    series.fails = lambda number: True
    _, decided, _ = proven(launches(series), one)
    assert decided == [f"launches one after the other, not live pairs: a live pair failed: {PORT}"]
    assert len(series.pairs) == 1
    assert not one.live
    assert one.look().significant


@pytest.mark.parametrize(("failing", "live"), [((1,), True), ((1, 2), False)])
def test_a_live_pair_that_fails_is_measured_again_and_twice_ends_live_pairs(
    failing: Sequence[int], live: bool
) -> None:
    series, one = StandIn(gain=1.05), chosen()
    series.fails = lambda number: number in failing
    proven(launches(series), one)
    assert one.live is live
    assert bool(series.launched) is not live
    if not live:
        assert len(one.pairs) == 1 + len(series.launched) // 2, "the first one was live, and counts"


def test_where_later_live_pairs_fail_launches_in_turn_count_beside_the_earlier_ones() -> None:
    series, one = StandIn(gain=1.6, scatter=UNSURE), chosen()
    series.fails = lambda number: number >= 4
    proven(launches(series), one)
    assert one.errors[:4] != [None] * 4
    assert one.errors[4:] == [None] * (len(series.launched) // 2)
    assert one.look().proven


# -- what goes wrong -------------------------------------------------------------------------------


def test_a_finalist_that_fails_is_out_with_the_reason() -> None:
    series, one = StandIn(in_turn_only=IN_TURN), chosen()
    series.broken = one.settings
    proven(launches(series), one)
    assert (one.failure, one.pairs) == (FAILED, [])
    assert sum(request.settings == A for request in series.launched) == 1


def test_a_baseline_launch_that_fails_once_by_itself_is_repeated() -> None:
    series, one = StandIn(in_turn_only=IN_TURN), chosen()
    series.alone = lambda number: None if number == 0 else 100.0
    baseline, _, _ = proven(launches(series), one)
    assert [side.purpose for side in series.launched[1:3]] == [TrialPurpose.PAIR_BASELINE] * 2
    assert baseline.failure is None
    assert one.look().significant


def test_a_baseline_that_keeps_failing_ends_the_tuning() -> None:
    series = StandIn(in_turn_only=IN_TURN)
    series.alone = lambda number: None
    with pytest.raises(TuningEnded, match=FAILED) as ended:
        proven(launches(series), chosen())
    assert ended.value.verdict == "script_failed"
    assert len(series.launched) == 3


def test_a_baseline_that_fails_after_the_gain_is_proven_ends_the_proof_alone() -> None:
    series, one = StandIn(in_turn_only=IN_TURN), chosen()
    series.alone = lambda number: (100.0, 106.0, None, None)[number]
    _, decided, _ = proven(launches(series), one)
    assert decided[-1] == f"the proof ended early, the script as it is failed: {FAILED}"
    assert (len(one.pairs), one.done) == (2, False)
    assert one.look().significant
