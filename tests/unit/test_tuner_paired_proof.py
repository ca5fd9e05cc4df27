"""The proof: rounds of pairs until the test settles, as time allows, and what it says meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from gpurun.pairs.engine import NotLive
from gpurun.pairs.estimate import IN_TURN_SD, LIVE_SD, Reading
from gpurun.pairs.gain import MOST_PAIRS, look
from gpurun.tuner.proof.paired_proof import Finalist, PairResult, TakePair, proof_of, prove
from tests.unit.tuner_trials import trial

NOISE = (1.0, 1.01, 0.99, 1.005, 0.995, 1.002, 0.998, 1.0)
FAILED = "a bad day"


class Pairs:
    """Pairs of a given gain, live until the pair of the number `in_turn`.

    `failing`: (side, number of the pair) that falls over; side 0 is the baseline. The launches' own
    rates are those of a disturbed machine where pairs are live: only the turns count.
    """

    def __init__(
        self,
        gain: float,
        *,
        scatter: Sequence[float] = NOISE,
        in_turn: float = math.inf,
        failing: tuple[int, int] | None = None,
        seconds: float = 1.0,
    ) -> None:
        self.taken: list[tuple[int, Mapping[str, Any]]] = []
        self._gain, self._scatter, self._in_turn = gain, scatter, in_turn
        self._failing, self._seconds = failing, seconds

    def __call__(self, settings: Mapping[str, Any], number: int) -> PairResult:
        self.taken.append((number, settings))
        in_turn = number >= self._in_turn
        gain = self._gain * self._scatter[number % len(self._scatter)]
        rates: list[float | None] = [100.0, 100.0 * gain if in_turn else 10.0]
        if self._failing is not None and self._failing[1] == number:
            rates[self._failing[0]] = None
        sides = [
            trial(rate, knobs, reason="" if rate else FAILED)
            for rate, knobs in zip(rates, ({}, settings), strict=True)
        ]
        known = None if None in rates else gain
        return PairResult(sides[0], sides[1], known, self._seconds, None if in_turn else 0.01)

    @property
    def numbers(self) -> list[int]:
        return [number for number, _ in self.taken]


def proven(
    pairs: TakePair,
    *finalists: Finalist,
    baseline: Finalist | None = None,
    out_of_time: Callable[[float], bool] = lambda _: False,
) -> list[str]:
    """What the proof of these finalists tells."""
    told: list[str] = []
    prove(baseline or Finalist("baseline", {}), [*finalists], pairs, out_of_time, told.append)
    return told


def chosen() -> Finalist:
    return Finalist("chosen", {"a": 1})


def larger() -> Finalist:
    return Finalist("larger batch", {"b": 2})


# -- when it ends ----------------------------------------------------------------------------------


def test_two_live_pairs_prove_a_large_gain_by_their_turns() -> None:
    pairs, baseline, one = Pairs(1.3), Finalist("baseline", {}), chosen()
    told = proven(pairs, one, baseline=baseline)
    proof = proof_of(one)
    assert pairs.numbers == [0, 1]
    assert proof is not None
    assert proof.live
    assert proof.settled
    assert proof.statistically_significant
    assert proof.speedup == pytest.approx(1.3, rel=0.02)
    assert len(proof.pairs) == len(proof.errors) == len(baseline.rates) == len(one.rates) == 2
    assert told[-1].startswith("chosen: ×1.31 (1.")
    assert told[-1].endswith(") after 2 pairs, settled")


def test_one_pair_in_turn_is_told_by_its_gain_alone() -> None:
    pairs = Pairs(3.0, in_turn=0)
    told = proven(pairs, one := chosen(), out_of_time=lambda _: bool(one.pairs))
    assert told[0] == "chosen: ×3 in 1 pair"
    assert proof_of(one) is None


def test_launches_in_turn_have_their_own_prior_and_prove_a_large_gain_too() -> None:
    pairs, one = Pairs(3.0, in_turn=0), chosen()
    proven(pairs, one)
    proof = proof_of(one)
    assert proof is not None
    assert not proof.live
    assert proof.errors == ()
    assert proof.settled
    assert proof.speedup == pytest.approx(3.0, rel=0.02)
    logs = [math.log(theirs / ours) for ours, theirs in one.pairs]
    assert one.look() == look([Reading(log, 0.0, IN_TURN_SD) for log in logs])


@pytest.mark.parametrize("in_turn", [0.0, math.inf])
def test_pairs_without_a_gain_claim_none_and_leave_the_budget_to_others(in_turn: float) -> None:
    pairs, one = Pairs(1.0, in_turn=in_turn), chosen()
    proven(pairs, one)
    assert len(pairs.taken) <= 3
    assert one.done
    assert not one.look().significant


@pytest.mark.parametrize(("gains", "over"), [((1.0, 1.01, 0.99), True), ((1.2, 0.8, 1.0), False)])
def test_pairs_without_a_gain_end_the_proof_unless_they_leave_room_for_one(
    gains: Sequence[float], over: bool
) -> None:
    one = chosen()
    one.pairs = [(100.0, 100.0 * gain) for gain in gains]
    one.errors = [0.005] * 3
    assert (one.done, one.may_gain) == (over, False)


def test_pairs_that_agree_with_nothing_end_with_the_last_look() -> None:
    pairs, one = Pairs(1.05, scatter=(1.5, 0.7)), chosen()
    proven(pairs, one)
    assert len(pairs.taken) == MOST_PAIRS
    assert one.settled
    assert not one.look().significant


def test_live_pairs_are_judged_by_their_prior_and_their_own_errors() -> None:
    proven(Pairs(1.3), one := chosen())
    readings = [
        Reading(math.log(theirs / ours), error or 0.0, LIVE_SD)
        for (ours, theirs), error in zip(one.pairs, one.errors, strict=True)
    ]
    assert one.look() == look(readings)


# -- time ------------------------------------------------------------------------------------------


def test_a_pair_begins_if_there_is_time_for_what_the_last_one_took() -> None:
    for left, numbers in ((-1.0, []), (6.0, [0]), (19.0, [0]), (21.0, [0, 1])):
        pairs = Pairs(1.05, seconds=10.0)

        def out_of_time(needed: float, left: float = left, pairs: Pairs = pairs) -> bool:
            return left - 10.0 * len(pairs.taken) < needed

        proven(pairs, chosen(), out_of_time=out_of_time)
        assert pairs.numbers == numbers


def test_the_budget_ends_the_proof_between_pairs() -> None:
    pairs, one = Pairs(1.05), chosen()
    told = proven(pairs, one, out_of_time=lambda _: len(pairs.taken) == 1)
    assert pairs.numbers == [0]
    assert told[-1] == "the budget ended before the proof was complete"
    assert not one.done


def test_where_time_is_short_it_is_for_the_first_finalist() -> None:
    left = 10.0  # pairs of a second each
    pairs, one, other = Pairs(1.1, scatter=(1.2, 0.85)), chosen(), larger()  # it settles late
    told = proven(pairs, one, other, out_of_time=lambda s: left - len(pairs.taken) < s)
    assert len(pairs.taken) == 10
    assert len(one.pairs) > len(other.pairs) > 1
    assert told.count("time is short: chosen is launched without larger batch") == 1


def test_a_pair_that_the_end_of_the_budget_cut_off_is_no_failure_of_the_finalist() -> None:
    over = []

    def cut_off(settings: Mapping[str, Any], number: int) -> PairResult:
        over.append(True)
        late = trial(None, settings, status="timeout", reason="given up after 9 s")
        return PairResult(trial(100.0), late, None, 9.0)

    told = proven(cut_off, one := chosen(), out_of_time=lambda needed: bool(over))
    assert told[-1] == "the budget ended in the middle of a round"
    assert one.failure is None


# -- what goes wrong -------------------------------------------------------------------------------


def test_live_pairs_and_launches_in_turn_count_together_each_by_its_kind() -> None:
    pairs, one = Pairs(1.05, in_turn=1), chosen()
    one.pairs, one.errors, one.earlier_pairs = [(100.0, 104.0)], [0.01], 1
    proven(pairs, one, out_of_time=lambda _: len(pairs.taken) == 2)
    assert pairs.numbers == [0, 1]
    assert (len(one.pairs), one.errors, one.earlier_pairs) == (3, [0.01, 0.01, None], 1)
    assert not one.live
    sds = (LIVE_SD, LIVE_SD, IN_TURN_SD)
    readings = [
        Reading(math.log(theirs / ours), error or 0.0, sd)
        for (ours, theirs), error, sd in zip(one.pairs, one.errors, sds, strict=True)
    ]
    assert one.look() == look(readings)


def test_a_live_pair_that_fails_too_late_to_launch_in_turn_ends_the_proof() -> None:
    def late(settings: Mapping[str, Any], number: int) -> PairResult:
        raise NotLive("a port is taken")

    told = proven(late, one := chosen())
    assert told == ["chosen: no more pairs, the time is up: a port is taken"]
    assert one.failure is None


def test_a_finalist_that_fails_is_out_and_the_other_goes_on() -> None:
    class OneFails(Pairs):
        def __call__(self, settings: Mapping[str, Any], number: int) -> PairResult:
            self._failing = (1, 0) if "a" in settings else None
            return super().__call__(settings, number)

    pairs, one, other = OneFails(3.0), chosen(), larger()
    proven(pairs, one, other)
    assert one.failure == FAILED
    assert one.done
    assert one.pairs == []
    assert other.look().significant
    assert [number for number, settings in pairs.taken if "a" in settings] == [0]


def test_a_baseline_that_fails_ends_the_proof() -> None:
    baseline, one = Finalist("baseline", {}), chosen()
    pairs = Pairs(3.0, failing=(0, 1))
    proven(pairs, one, baseline=baseline)
    assert pairs.numbers == [0, 1]
    assert baseline.failure == FAILED
    assert len(one.pairs) == 1
