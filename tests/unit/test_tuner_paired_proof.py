"""The proof: pairs in alternating order, fair seeds, and an end as soon as the test has settled."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpurun.records.tuning import TrialPurpose
from gpurun.stats.sequential_test import sequential_look
from gpurun.tuner.proof.paired_proof import Finalist, PairResult, proof_of, prove
from gpurun.tuner.tuning_trial import Trial
from tests.unit.tuner_trials import trial

NOISE = (1.0, 1.01, 0.99, 1.005, 0.995, 1.002, 0.998, 1.0)


class Machine:
    """Launches at rates that depend on the settings; remembers what was launched."""

    def __init__(self, gain: float, failing: tuple[int, ...] = ()) -> None:
        self.launched: list[tuple[str, int]] = []
        self.settings: list[Mapping[str, Any]] = []
        self.following: list[Sequence[Mapping[str, Any]]] = []
        self._gain = gain
        self._failing = failing

    def launch(
        self,
        purpose: TrialPurpose,
        settings: Mapping[str, Any],
        number: int,
        following: Sequence[Mapping[str, Any]],
    ) -> Trial:
        self.settings.append(settings)
        self.following.append(following)
        self.launched.append((purpose.value, number))
        if len(self.launched) in self._failing:
            return trial(None, settings, reason="a bad day")
        turn = NOISE[len(self.launched) % len(NOISE)]
        return trial(100.0 * turn * (self._gain if settings else 1.0), settings)


def proven(
    machine: Machine, baseline: Finalist, *finalists: Finalist, rounds: int = 99
) -> list[str]:
    told: list[str] = []

    def out_of_time(seconds: float) -> bool:
        return len({number for _, number in machine.launched}) >= rounds

    prove(baseline, list(finalists), machine.launch, out_of_time, told.append, 3.0)
    return told


def test_rounds_alternate_their_order_and_share_a_seed() -> None:
    machine, baseline, chosen = Machine(3.0), Finalist("baseline", {}), Finalist("chosen", {"a": 1})
    proven(machine, baseline, chosen)
    assert machine.launched[:4] == [
        ("pair candidate", 0), ("pair baseline", 0), ("pair baseline", 1), ("pair candidate", 1),
    ]  # fmt: skip


def test_each_launch_is_told_what_comes_after_it() -> None:
    """So that the processes of the next ones can start meanwhile."""
    machine = Machine(1.2)
    proven(
        machine,
        Finalist("baseline", {}),
        Finalist("chosen", {"a": 1}),
        Finalist("larger batch", {"b": 2}),
    )
    assert len(machine.settings) > 6
    for number, following in enumerate(machine.following[:3]):  # nothing is settled in two rounds
        assert list(following[:3]) == machine.settings[number + 1 : number + 4]


def test_a_large_gain_settles_soon_and_is_significant() -> None:
    machine, baseline, chosen = Machine(3.0), Finalist("baseline", {}), Finalist("chosen", {"a": 1})
    proven(machine, baseline, chosen)
    proof = proof_of(chosen)
    assert proof is not None
    assert proof.settled
    assert proof.statistically_significant
    assert proof.speedup == pytest.approx(3.0, rel=0.05)
    assert len(proof.pairs) == len(baseline.rates) == len(chosen.rates) < 8
    assert chosen.done


def test_no_gain_is_never_claimed() -> None:
    machine, baseline, chosen = Machine(1.0), Finalist("baseline", {}), Finalist("chosen", {"a": 1})
    proven(machine, baseline, chosen)
    proof = proof_of(chosen)
    assert proof is not None
    assert not proof.statistically_significant


@pytest.mark.parametrize(("gains", "over"), [((1.0, 1.01, 0.99), True), ((1.2, 0.8, 1.0), False)])
def test_pairs_without_a_gain_end_the_proof_unless_they_leave_room_for_one(
    gains: Sequence[float], over: bool
) -> None:
    chosen = Finalist("chosen", {"a": 1})
    chosen.pairs = [(100.0, 100.0 * gain) for gain in gains]
    chosen.errors = [0.005] * 3
    assert (chosen.done, chosen.may_gain) == (over, False)


def test_the_budget_ends_the_proof_between_rounds() -> None:
    machine, baseline, chosen = Machine(1.0), Finalist("baseline", {}), Finalist("chosen", {"a": 1})
    told = proven(machine, baseline, chosen, rounds=1)
    assert len(machine.launched) == 2
    assert told[-1] == "the budget ended before the proof was complete"
    assert not chosen.done
    assert proof_of(chosen) is None


def test_where_time_is_short_it_is_for_the_first_finalist() -> None:
    baseline, chosen = Finalist("baseline", {}), Finalist("chosen", {"a": 1})
    larger = Finalist("larger batch", {"b": 2})
    left = [10.0]  # launches of a second each
    rates = itertools.cycle((100.0, 130.0, 80.0, 110.0, 70.0))  # nothing settles so soon

    def launch(purpose: TrialPurpose, settings: Mapping[str, Any], *rest: Any) -> Trial:
        left[0] -= 1.0
        found = trial(next(rates), settings)
        return replace(found, record=replace(found.record, seconds=1.0))

    told: list[str] = []
    prove(baseline, [chosen, larger], launch, lambda s: left[0] < s, told.append, 1.0)
    assert len(larger.pairs) == 2
    assert len(chosen.pairs) == 4
    assert told.count("time is short: chosen is launched without larger batch") == 1


class LivePairs:
    """Live pairs of a given gain; the one of a given number fails."""

    def __init__(self, gain: float, *failing: int, scatter: Sequence[float] = NOISE) -> None:
        self.rounds: list[int] = []
        self._gain, self._failing, self._scatter = gain, failing, scatter

    def __call__(self, settings: Mapping[str, Any], number: int) -> PairResult:
        self.rounds.append(number)
        if number in self._failing:
            return PairResult(None, None, None, 1.0, "a port is taken")
        turn = self._scatter[number % len(self._scatter)]
        # the launches' own rates are those of a disturbed machine: only the turns count
        sides = trial(100.0, {}), trial(10.0, settings)
        return PairResult(*sides, self._gain * turn, 1.0)


def test_the_gain_of_a_live_pair_is_that_of_its_turns() -> None:
    machine, baseline, chosen = Machine(3.0), Finalist("baseline", {}), Finalist("chosen", {"a": 1})
    live = LivePairs(1.3)
    prove(baseline, [chosen], machine.launch, lambda _: False, lambda _: None, 3.0, live)
    proof = proof_of(chosen)
    assert machine.launched == []
    assert live.rounds == [0, 1]
    assert proof is not None
    assert proof.live
    assert proof.speedup == pytest.approx(1.3, rel=0.02)
    assert proof.statistically_significant


@pytest.mark.parametrize(("spare", "pairs"), [(10.0, 2), (4.0, 1)])
def test_a_pair_that_can_be_shorter_fits_into_the_rest_of_the_budget(
    spare: float, pairs: int
) -> None:
    """35 s are left after a pair of 40 s, in which some went by after its first ratio."""
    left = 75.0

    def live(settings: Mapping[str, Any], number: int) -> PairResult:
        nonlocal left
        left -= 40.0
        sides = trial(100.0, {}), trial(10.0, settings)
        return PairResult(*sides, 1.2, 40.0, spare_seconds=spare)

    machine, baseline, chosen = Machine(1.0), Finalist("baseline", {}), Finalist("chosen", {"a": 1})
    prove(baseline, [chosen], machine.launch, lambda s: left < s, lambda _: None, 20.0, live)
    assert len(chosen.pairs) == pairs


def test_live_pairs_without_a_gain_leave_the_budget_to_others() -> None:
    machine, baseline, chosen = Machine(1.0), Finalist("baseline", {}), Finalist("chosen", {"a": 1})
    live = LivePairs(1.0)
    prove(baseline, [chosen], machine.launch, lambda _: False, lambda _: None, 3.0, live)
    assert live.rounds == [0, 1, 2]
    assert chosen.done
    assert not chosen.look().significant


def test_where_live_pairs_fail_twice_launches_take_turns_and_the_prior_holds_no_more() -> None:
    machine, baseline, chosen = Machine(1.3), Finalist("baseline", {}), Finalist("chosen", {"a": 1})
    told: list[str] = []
    live = LivePairs(1.05, 1, 2)
    prove(baseline, [chosen], machine.launch, lambda _: False, told.append, 3.0, live)
    assert "launches one after the other from here on: a port is taken" in told
    assert live.rounds == [0, 1, 2]
    assert machine.launched[0][1] == 3
    assert not chosen.live
    assert chosen.look() == sequential_look(chosen.pairs)


def test_where_no_live_pair_works_launches_take_turns_at_once() -> None:
    machine, baseline, chosen = Machine(1.3), Finalist("baseline", {}), Finalist("chosen", {"a": 1})
    live = LivePairs(1.3, 0)
    prove(baseline, [chosen], machine.launch, lambda _: False, lambda _: None, 3.0, live)
    assert live.rounds == [0]
    assert machine.launched[0][1] == 1


def test_one_live_pair_that_fails_is_measured_again() -> None:
    machine, baseline, chosen = Machine(1.3), Finalist("baseline", {}), Finalist("chosen", {"a": 1})
    live = LivePairs(1.05, 1)
    prove(baseline, [chosen], machine.launch, lambda _: False, lambda _: None, 3.0, live)
    assert live.rounds[:3] == [0, 1, 2]
    assert machine.launched == []
    assert chosen.look().significant


def test_a_gain_that_live_pairs_have_proven_stays_where_a_later_one_fails() -> None:
    machine, baseline = Machine(1.3), Finalist("baseline", {})
    told: list[str] = []
    live = LivePairs(1.6, 3, scatter=(1.0, 1.25, 0.9))
    chosen = Finalist("chosen", {"a": 1})
    prove(baseline, [chosen], machine.launch, lambda _: False, told.append, 3.0, live)
    assert "no more pairs, the gain is proven: a port is taken" in told
    assert live.rounds == [0, 1, 2, 3]
    assert machine.launched == []
    assert chosen.look().significant
    assert not chosen.settled


def test_a_finalist_that_fails_is_out_and_the_other_goes_on() -> None:
    machine = Machine(3.0, failing=(2,))
    baseline, chosen, larger = (
        Finalist("baseline", {}),
        Finalist("chosen", {"a": 1}),
        Finalist("more", {"b": 2}),
    )
    proven(machine, baseline, chosen, larger)
    assert chosen.failure == "a bad day"
    assert chosen.pairs == []
    assert larger.look().significant


def test_a_baseline_launch_that_fails_once_is_repeated() -> None:
    machine, baseline = Machine(3.0, failing=(2,)), Finalist("baseline", {})
    proven(machine, baseline, chosen := Finalist("chosen", {"a": 1}))
    assert machine.launched[1:3] == [("pair baseline", 0), ("pair baseline", 0)]
    assert baseline.failure is None
    assert chosen.look().significant


def test_a_baseline_that_keeps_failing_ends_the_proof() -> None:
    machine, baseline = Machine(3.0, failing=(2, 3)), Finalist("baseline", {})
    proven(machine, baseline, chosen := Finalist("chosen", {"a": 1}))
    assert baseline.failure == "a bad day"
    assert chosen.pairs == []
