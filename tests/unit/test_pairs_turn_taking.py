"""When two sides have taken enough turns, and how long these are; the clock is played."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpurun.pairs import turn_taking as turns_module
from gpurun.pairs.live_launches import LIMITS, NAME, BesideReference, Reference
from gpurun.pairs.side import LEAST_STEPS, PairFailed, Side, SideEnded
from gpurun.pairs.turn_ratio import LEAST_ROUNDS, Round, turn_ratio
from gpurun.pairs.turn_taking import (
    FED_NS,
    LEAST_NS,
    MOST_NS,
    TurnLimits,
    take_turns,
    turn_nanoseconds,
)
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.messages.turns import Turn

MILLISECOND = 1_000_000
SECOND = 1_000_000_000
LIMITED = TurnLimits(seconds=8.0, most_seconds=20.0, epoch_seconds=16.0, error=0.001)


def rounds(count: int, step_ms: float, epoch_steps: int = 0, starts: int = 0) -> list[Round]:
    """Noisy rounds of equal sides. Their last epoch had so many steps, 0: none was seen. In the
    first rounds epochs begin."""
    found = []
    for number in range(count):
        noise = 0.95 + 0.1 * (0.618 * number % 1)
        noisy = Turn(5, int(5 * step_ms * noise * MILLISECOND), epoch_steps=epoch_steps)
        found.append(Round(noisy, Turn(5, int(5 * step_ms * MILLISECOND), epoch_steps=epoch_steps)))
    for number in range(starts):
        took = int(8 * step_ms * MILLISECOND)
        begins = Turn(5, took, epoch_starts=1, epoch_steps=epoch_steps)
        found[number] = Round(begins, begins)
    return found


@pytest.fixture
def seconds_taken(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[Round]], float]:
    """When `LIMITED` says that these rounds are enough, in seconds after the first."""

    def taken(found: Sequence[Round]) -> float:
        clock = 0.0
        with monkeypatch.context() as patched:
            patched.setattr(turns_module.time, "monotonic", lambda: clock)
            enough = LIMITED.enough()
            while not enough(found):
                clock += 0.5
                assert clock < 100
        return clock

    return taken


Taken = Callable[[Sequence[Round]], float]


def test_turns_end_with_their_time(seconds_taken: Taken) -> None:
    assert seconds_taken(rounds(40, 10.0)) == 8.5


def test_turns_that_agree_end_at_once(seconds_taken: Taken) -> None:
    steady = Turn(5, 50 * MILLISECOND)
    assert seconds_taken([Round(steady, steady)] * 40) == 0.0


@pytest.mark.parametrize(("spread", "seconds"), [(0.1, 8.5), (0.8, 20.5)])
def test_turns_that_disagree_much_go_on(
    spread: float, seconds: float, seconds_taken: Taken
) -> None:
    steady = Turn(5, 500 * MILLISECOND)
    found = [
        Round(steady, Turn(5, int(500 * (1 + spread * (0.618 * n % 1)) * MILLISECOND)))
        for n in range(12)
    ]
    assert seconds_taken(found) == seconds


@pytest.mark.parametrize(("factor", "spread", "seconds"), [(20, 0.8, 8.5), (5, 0.1, 0.0)])
def test_of_a_large_ratio_nobody_asks_for_the_percent(
    factor: float, spread: float, seconds: float, seconds_taken: Taken
) -> None:
    steady = Turn(5, 1000 * MILLISECOND)
    found = [
        Round(steady, Turn(5, int(1000 / factor * (1 + spread * (0.618 * n % 1)) * MILLISECOND)))
        for n in range(12)
    ]
    assert seconds_taken(found) == seconds


def test_turns_go_on_for_epochs_that_begin_soon(seconds_taken: Taken) -> None:
    """An epoch of 2 s: 8 s for two of each side."""
    assert seconds_taken(rounds(40, 10.0, epoch_steps=200)) == 16.5
    assert seconds_taken(rounds(40, 10.0, epoch_steps=200, starts=2)) == 8.5, "they were seen"


def test_turns_do_not_wait_for_epochs_that_begin_too_late(seconds_taken: Taken) -> None:
    """An epoch of 8 s: 32 s for two of each side."""
    assert seconds_taken(rounds(40, 80.0, epoch_steps=100)) == 8.5


def test_turns_do_not_wait_where_each_holds_the_end_of_an_epoch(seconds_taken: Taken) -> None:
    assert seconds_taken(rounds(30, 100.0, epoch_steps=4, starts=30)) <= 8.5


def test_turns_that_give_no_ratio_come_to_an_end(seconds_taken: Taken) -> None:
    """Each round holds the end of an epoch of one side alone."""
    begins = Turn(50, SECOND, epoch_starts=3, epoch_steps=20)
    assert seconds_taken([Round(begins, Turn(5, SECOND))] * 30) <= 16.5


def test_where_the_time_is_short_the_first_ratio_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module.time, "monotonic", lambda: 100.0)
    found = rounds(40, 10.0)
    enough = TurnLimits(error=0.0).enough(hurry=99.0)
    assert not enough(found[: LEAST_ROUNDS - 1])
    assert enough(found[:LEAST_ROUNDS])
    assert not TurnLimits(error=0.0).enough(hurry=101.0)(found[:LEAST_ROUNDS])


def test_where_the_time_is_short_epochs_that_begin_soon_are_waited_for_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without them a pair with an end of 0.5 s after 60 steps was off by 3 %, and said 0."""
    monkeypatch.setattr(turns_module.time, "monotonic", lambda: 100.0)
    unseen, seen = rounds(40, 10.0, epoch_steps=200), rounds(40, 10.0, 200, starts=2)
    assert not TurnLimits(error=0.0).enough(hurry=99.0)(unseen)
    assert TurnLimits(error=0.0).enough(hurry=99.0)(seen)


def test_at_the_deadline_any_rounds_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module.time, "monotonic", lambda: 100.0)
    assert TurnLimits().enough(deadline=99.0)([])
    assert not TurnLimits().enough(deadline=101.0)([])


def test_a_search_asks_less_of_a_candidate_than_a_proof() -> None:
    assert LIMITS.seconds < TurnLimits().seconds
    assert LIMITS.error > TurnLimits().error


@pytest.mark.parametrize(
    ("step_ms", "fed", "handover_ms", "expected_ms"),
    [
        pytest.param(1.0, False, 0.1, LEAST_NS / 1e6, id="quick steps"),
        pytest.param(20.0, False, 0.1, 5 * 20.0, id="room for the least steps"),
        pytest.param(2000.0, False, 0.1, 2 * 2000.0, id="however long these are: few"),
        pytest.param(1.0, True, 0.1, FED_NS / 1e6, id="fed by loader workers"),
        pytest.param(200.0, True, 0.1, 2 * 200.0, id="fed, with slow steps"),
        pytest.param(1.0, False, 5.0, 50.0, id="slow hand-overs"),
        pytest.param(1.0, False, 500.0, MOST_NS / 1e6, id="very slow hand-overs"),
    ],
)
def test_turns_are_as_long_as_steps_workers_and_handovers_ask_for(
    step_ms: float, fed: bool, handover_ms: float, expected_ms: float
) -> None:
    slower = Turn(5, int(5 * step_ms * MILLISECOND), fed=fed)
    handovers = [900 * MILLISECOND, *[int(handover_ms * MILLISECOND)] * 8]  # the first is unusual
    for last in (Round(slower, Turn(50, 10_000)), Round(Turn(50, 10_000), slower)):
        assert turn_nanoseconds([last], handovers) == pytest.approx(expected_ms * MILLISECOND)


class PlayedSide:
    """Steps of a millisecond, each a little longer or shorter; after each turn the `clock` is
    `handover_ns` later. `left`: turns until its training is over; it then ends with `exit_code`."""

    name = "candidate"

    def __init__(self, left: int = 10_000, exit_code: int | None = 0, **more: Any) -> None:
        self.left, self.exit_code = left, exit_code
        self.clock = more.get("clock") or SimpleNamespace(time=0)
        self.handover_ns, self.fed = more.get("handover_ns", 0), more.get("fed", False)
        self.draws = random.Random(left)
        self.taken: list[Turn] = []

    def take(self, nanoseconds: int, partner: object, least_steps: int = LEAST_STEPS) -> Turn:
        self.left -= 1
        if self.left < 0:
            raise SideEnded(self.name, self.exit_code)
        step = int(self.draws.uniform(0.9, 1.1) * MILLISECOND)
        steps = max(least_steps, math.ceil(nanoseconds / step))
        self.clock.time += (steps + 1) * step + self.handover_ns
        self.taken.append(Turn(steps, steps * step, fed=self.fed))
        return self.taken[-1]

    def await_ready(self, deadline: float = math.inf) -> None: ...

    def freeze(self) -> None: ...


def after(count: int) -> Callable[[Sequence[Round]], bool]:
    """So many rounds are enough."""
    return lambda found: len(found) == count


def taken(first: Any, second: Any, count: int = 20) -> list[Round]:
    """So many rounds of two sides."""
    sides = cast(tuple[Side, Side], (first, second))
    return take_turns(sides, random.Random(0), after(count))


def milliseconds(found: Sequence[Round], number: int) -> list[float]:
    """The length of a side's turns but the first."""
    return [one.turns[number].nanoseconds / MILLISECOND for one in found[1:]]


def test_both_sides_take_turns_in_an_order_that_is_drawn() -> None:
    order: list[str] = []

    class Noted(PlayedSide):
        def take(self, nanoseconds: int, partner: object, least_steps: int = LEAST_STEPS) -> Turn:
            order.append("first" if self is first else "second")
            return super().take(nanoseconds, partner, least_steps)

    first, second = Noted(), Noted()
    found = taken(first, second)
    assert [one.first for one in found] == first.taken
    assert [one.second for one in found] == second.taken
    began = {tuple(order[n : n + 2]) for n in range(0, 40, 2)}
    assert began == {("first", "second"), ("second", "first")}


def test_turns_are_longer_where_loader_workers_feed_one_side() -> None:
    usual, fed = taken(PlayedSide(), PlayedSide()), taken(PlayedSide(), PlayedSide(fed=True))
    for number in (0, 1):
        assert max(milliseconds(usual, number)) < 50
        assert min(milliseconds(fed, number)[5:]) >= 0.9 * FED_NS / MILLISECOND


def test_slow_handovers_lengthen_the_turns_until_they_take_their_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(time=0)
    monkeypatch.setattr(turns_module.time, "perf_counter_ns", lambda: clock.time)
    slow = [PlayedSide(clock=clock, handover_ns=10 * MILLISECOND) for _ in range(2)]
    lengths = milliseconds(taken(*slow), 0)[5:]
    assert 90 <= min(lengths) <= max(lengths) <= 170


@pytest.mark.parametrize(
    ("left", "exit_code"),
    [
        pytest.param(3, 0, id="ends too soon"),
        pytest.param(9, 1, id="fails"),
        pytest.param(9, None, id="is silent"),
    ],
)
def test_a_side_that_ends_too_soon_or_fails_is_an_error(left: int, exit_code: int | None) -> None:
    with pytest.raises(SideEnded):
        taken(PlayedSide(), PlayedSide(left, exit_code))


def test_a_training_that_ends_in_a_turn_is_measured_by_those_before() -> None:
    found = taken(PlayedSide(), PlayedSide(9))
    assert len(found) == 9
    assert turn_ratio(found) is not None


def beside(reference: SimpleNamespace, candidate: Any) -> BesideReference:
    """A candidate that is to take turns with this reference."""
    found = object.__new__(BesideReference)
    found._side = cast(Side, candidate)
    found._reference = cast(Reference, reference)
    found._draws = random.Random(0)
    found.begun, found.ratio = False, None
    return found


def waiting(side: Any, ended: bool = False) -> SimpleNamespace:
    """A reference that has warmed up."""
    side.name = NAME
    waited = SimpleNamespace(side=side, lost="", ended=ended, settled=False)
    waited.await_ready = lambda: None
    return waited


def test_a_reference_uses_up_its_ready_batches_before_its_first_candidate_alone() -> None:
    reference = waiting(PlayedSide())
    stretches = []
    for _ in range(2):
        candidate, before = PlayedSide(), len(reference.side.taken)
        assert turn_ratio(beside(reference, candidate)._turns()) is not None
        stretches += [
            candidate.taken[0].nanoseconds >= SECOND,
            reference.side.taken[before].nanoseconds >= SECOND,
        ]
    assert stretches == [True, True, True, False]
    assert reference.lost == ""


def test_the_last_turns_of_a_reference_that_ends_still_count() -> None:
    reference = waiting(PlayedSide(10), ended=True)
    assert turn_ratio(beside(reference, PlayedSide())._turns()) is not None
    assert reference.lost == f"{NAME} came to its end"


def test_a_reference_that_ends_too_soon_is_lost_and_the_candidate_goes_on() -> None:
    reference = waiting(PlayedSide(3))
    assert beside(reference, PlayedSide())._turns() == []
    assert reference.lost == f"{NAME} ended with exit code 0 before the pair was measured"


def test_a_candidate_that_cannot_take_turns_is_given_up_and_the_reference_is_not_lost() -> None:
    class Blocked(PlayedSide):
        def take(self, nanoseconds: int, partner: object, least_steps: int = LEAST_STEPS) -> Turn:
            if len(self.taken) == 3:
                raise PairFailed(self.name, "candidate stood still")
            return super().take(nanoseconds, partner, least_steps)

    reference, blocked = waiting(PlayedSide()), Blocked()
    blocked.answered = True
    turns = beside(reference, blocked)
    assert turns.look() == Failure(FailureKind.NOT_LIVE, "candidate stood still")
    assert (turns.ratio, reference.lost) == (None, "")


def test_a_reference_that_waits_for_its_candidate_is_lost_and_the_candidate_goes_on() -> None:
    class Blocked(PlayedSide):
        def take(self, nanoseconds: int, partner: object, least_steps: int = LEAST_STEPS) -> Turn:
            raise PairFailed(NAME, "the reference stood still")

    reference = waiting(Blocked())
    assert beside(reference, PlayedSide())._turns() == []
    assert "the reference stood still" in reference.lost


def test_a_candidate_that_fails_leaves_the_reference_for_the_next() -> None:
    reference = waiting(PlayedSide())
    with pytest.raises(SideEnded, match="candidate ended with exit code 1"):
        beside(reference, PlayedSide(4, exit_code=1))._turns()
    assert reference.lost == ""


def test_an_answer_arrives_as_it_was_sent() -> None:
    turn = Turn(7, 123, fed=True, epoch_starts=2, epoch_steps=9, all_steps=11, peak_bytes=13)
    assert Turn.read(turn.line()) == turn
    plain = replace(turn, fed=False)
    assert Turn.read(plain.line()) == plain
