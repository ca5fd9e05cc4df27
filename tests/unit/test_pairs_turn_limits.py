"""When two sides have taken enough turns; the clock is played."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from gpurun.pairs.turn_limits import TurnLimits, measured_rounds, spare_seconds

from gpurun.pairs.reference import BesideReference, Reference
from gpurun.pairs.side import (
    FIRST_ROUNDS,
    Round,
    Side,
    SideEnded,
    has_short_epochs,
    take_turns,
)
from gpurun.pairs.turn_ratio import turn_ratio
from gpurun.records.messages.turns import Turn
from gpurun.trials import turn_limits

MILLISECOND = 1_000_000


def rounds(count: int, step_ms: float, epoch_steps: int, starts: int = 0) -> list[Round]:
    """Noisy rounds of equal sides. Their last epoch had so many steps, 0: none was seen."""
    found = []
    for number in range(count):
        noise = 0.8 + 0.4 * (0.618 * number % 1)
        turn = Turn(5, int(5 * step_ms * noise * MILLISECOND), epoch_steps=epoch_steps)
        found.append(Round(turn, Turn(5, int(5 * step_ms * MILLISECOND), epoch_steps=epoch_steps)))
    for number in range(starts):
        begins = Turn(
            5,
            int(8 * step_ms * MILLISECOND),
            at_epoch_end=True,
            epoch_starts=1,
            epoch_steps=epoch_steps,
        )
        found[number] = Round(begins, begins)
    return found


def seconds_taken(found: Sequence[Round], monkeypatch: pytest.MonkeyPatch) -> float:
    """When the limits of a pair say that these rounds are enough, in seconds after the first."""
    clock = 0.0
    monkeypatch.setattr(turn_limits.time, "monotonic", lambda: clock)
    enough = TurnLimits(seconds=8.0, most_seconds=20.0, epoch_seconds=16.0, error=0.004).enough()
    while not enough(found):
        clock += 0.5
        assert clock < 100
    return clock


def test_turns_go_on_for_epochs_that_begin_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rounds(40, 10.0, epoch_steps=200)  # an epoch of 2 s: 8 s for two of each side
    assert seconds_taken(found, monkeypatch) == 16.5
    assert seconds_taken(rounds(40, 10.0, epoch_steps=0), monkeypatch) == 8.5
    assert seconds_taken(rounds(40, 10.0, 200, starts=2), monkeypatch) == 8.5, "they were seen"


@pytest.mark.parametrize(("spread", "seconds"), [(0.1, 8.5), (0.8, 20.5)])
def test_turns_that_disagree_much_go_on(
    spread: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady = Turn(5, 500 * MILLISECOND)
    found = [
        Round(steady, Turn(5, int(500 * (1 + spread * (0.618 * n % 1)) * MILLISECOND)))
        for n in range(12)
    ]
    assert seconds_taken(found, monkeypatch) == seconds


def test_turns_do_not_wait_for_epochs_that_begin_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rounds(40, 80.0, epoch_steps=100)  # an epoch of 8 s: 32 s for two of each side
    assert seconds_taken(found, monkeypatch) == 8.5


def test_turns_of_which_each_holds_the_end_of_an_epoch_come_to_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loaders of unequal length in turn: no turn comes back to the step at which it began."""
    found = rounds(30, 100.0, epoch_steps=12, starts=30)
    assert seconds_taken(found, monkeypatch) == 16.5


def test_where_the_time_is_short_the_first_ratio_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_limits.time, "monotonic", lambda: 100.0)
    scattered = rounds(40, 10.0, epoch_steps=0)
    enough = TurnLimits(error=0.0).enough(hurry=99.0)
    assert not enough(scattered[:5])
    assert enough(scattered[:6])
    assert not TurnLimits(error=0.0).enough(hurry=101.0)(scattered[:6])


def test_where_the_time_is_short_epochs_that_begin_soon_are_waited_for_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without them a pair with an end of 0.5 s after 60 steps was off by 3 %, and said 0."""
    monkeypatch.setattr(turn_limits.time, "monotonic", lambda: 100.0)
    unseen, seen = rounds(40, 10.0, epoch_steps=200), rounds(40, 10.0, 200, starts=2)
    assert not TurnLimits(error=0.0).enough(hurry=99.0)(unseen)
    assert TurnLimits(error=0.0).enough(hurry=99.0)(seen)
    assert spare_seconds(seen[::-1], 8.0) == 0.0, "its epochs begin at the end"


def test_what_turns_took_after_their_first_ratio_could_be_spared() -> None:
    assert spare_seconds(rounds(40, 10.0, epoch_steps=0), 8.0) == pytest.approx(8 * 34 / 40)
    assert spare_seconds(rounds(5, 10.0, epoch_steps=0), 8.0) == 0.0, "they gave none"
    assert spare_seconds([], 0.0) == 0.0


def test_an_epoch_of_few_steps_is_counted_whole_however_long() -> None:
    few, many = Turn(5, 5_000_000_000, epoch_steps=8), Turn(5, 50_000_000, epoch_steps=30)
    quick = Turn(5, 25_000_000, epoch_steps=50)
    unseen = Turn(5, 50_000_000)
    assert has_short_epochs((few, unseen)) == (True, False)
    assert has_short_epochs((many, unseen)) == (False, False)
    assert has_short_epochs((many, quick)) == (True, True), "both sides are measured alike"
    assert has_short_epochs((unseen, unseen)) == (False, False), "no epoch was seen"


def test_epochs_of_a_side_are_short_beside_a_partner_whose_steps_take_as_long() -> None:
    """100 steps of 10 ms beside steps of 0.3 s: a turn of five of these sees an epoch's end."""
    slow, fast = Turn(7, 2_100_000_000), Turn(200, 2_000_000_000, epoch_steps=100)
    assert has_short_epochs((slow, fast)) == (False, True)
    assert has_short_epochs((replace(slow, epoch_steps=100), fast)) == (False, True)
    assert has_short_epochs((fast, fast)) == (False, False), "an epoch of 1 s, turns of 50 ms"


class PlayedSide:
    """`ends`: each of its turns that does not count whole epochs holds the end of one."""

    def __init__(self, ends: bool) -> None:
        self.ends = ends

    def take(self, nanoseconds: int, partner: object, whole_epochs: bool = False) -> Turn:
        ends = self.ends and not whole_epochs
        return Turn(20, nanoseconds, whole_epochs=whole_epochs, at_epoch_end=ends)


class Short(PlayedSide):
    """A side whose training is over after so many turns."""

    def __init__(self, turns: int, exit_code: int) -> None:
        super().__init__(ends=False)
        self.left, self.exit_code = turns, exit_code

    def take(self, nanoseconds: int, partner: object, whole_epochs: bool = False) -> Turn:
        self.left -= 1
        if self.left < 0:
            raise SideEnded("short", self.exit_code)
        return super().take(nanoseconds, partner, whole_epochs)


@pytest.mark.parametrize(("turns", "exit_code"), [(3, 0), (9, 1)])
def test_a_side_that_ends_too_soon_or_fails_is_an_error(turns: int, exit_code: int) -> None:
    sides = cast(tuple[Side, Side], (PlayedSide(ends=False), Short(turns, exit_code)))
    with pytest.raises(SideEnded):
        measured_rounds(sides, random.Random(0), lambda _: False, (False, False))


def test_a_training_that_ends_in_a_turn_is_measured_by_those_before() -> None:
    sides = cast(tuple[Side, Side], (PlayedSide(ends=False), Short(9, exit_code=0)))
    assert len(measured_rounds(sides, random.Random(0), lambda _: False, (False, False))) == 9


def test_where_most_rounds_hold_an_end_the_few_others_are_not_waited_for() -> None:
    """Epochs of 0.6 s, turns of 0.3 s: six rounds without an end came after 24, or never."""

    class Ending(PlayedSide):
        count = 0

        def take(self, nanoseconds: int, partner: object, whole_epochs: bool = False) -> Turn:
            self.count += 1
            turn = super().take(300_000_000, partner, whole_epochs)
            return replace(turn, epoch_steps=40, at_epoch_end=turn.at_epoch_end and self.count != 3)

    sides = cast(tuple[Side, Side], (PlayedSide(ends=False), Ending(ends=True)))
    found = take_turns(sides, random.Random(0), lambda done: len(done) == 20)
    assert sum(one.second.whole_epochs for one in found) == 12


def test_where_each_turn_of_a_side_holds_an_end_its_further_ones_count_whole_epochs() -> None:
    sides = cast(tuple[Side, Side], (PlayedSide(ends=False), PlayedSide(ends=True)))
    found = take_turns(sides, random.Random(0), lambda done: len(done) == 20)
    assert [one.second.whole_epochs for one in found] == [False] * FIRST_ROUNDS + [True] * 12
    assert not any(one.first.whole_epochs for one in found)


def test_a_turn_with_an_evaluation_does_not_make_the_other_side_count_epochs() -> None:
    """Steps of 50 and 40 ms, epochs of 100, each with an end of 5 s: turns took 83 s, not 26."""

    class Evaluating(PlayedSide):
        count = 0

        def take(self, nanoseconds: int, partner: object, whole_epochs: bool = False) -> Turn:
            self.count += 1
            ends = self.count % 5 == 0
            length = 5 * 50_000_000 + 5_000_000_000 * ends
            return Turn(5, length, whole_epochs=whole_epochs, at_epoch_end=ends, epoch_steps=100)

    sides = cast(tuple[Side, Side], (Evaluating(ends=False), Evaluating(ends=False)))
    found = take_turns(sides, random.Random(0), lambda done: len(done) == 20)
    assert not any(turn.whole_epochs for one in found for turn in one.turns)


def test_a_side_counts_whole_epochs_once_one_that_fits_its_turn_was_seen() -> None:
    """20 steps of 0.1 s beside a batch four times as large, whose five steps take 2.1 s.

    As many turns as that, each with the end of an epoch, took 80 s and gave no ratio.
    """

    class Quick(PlayedSide):
        def take(self, nanoseconds: int, partner: object, whole_epochs: bool = False) -> Turn:
            return replace(super().take(2_000_000_000, partner, whole_epochs), epoch_steps=20)

    class Slow(PlayedSide):
        def take(self, nanoseconds: int, partner: object, whole_epochs: bool = False) -> Turn:
            return Turn(5, 2_100_000_000, whole_epochs=whole_epochs, epoch_steps=5)

    sides = cast(tuple[Side, Side], (Quick(ends=True), Slow(ends=True)))
    enough = TurnLimits(error=1.0).enough()
    found = take_turns(sides, random.Random(0), enough, (False, True))
    assert [one.first.whole_epochs for one in found] == [False] + [True] * 4
    assert turn_ratio(found) is not None


def test_a_search_knows_the_pace_of_its_reference_before_the_first_candidate() -> None:
    """Epochs of 3 s would make its turns as long; those of the candidate are short."""
    wholes: dict[str, list[bool]] = {"reference": [], "candidate": []}

    class Paced(Side):
        def __init__(self, name: str, step_ns: int) -> None:
            self.name, self.step_ns = name, step_ns

        def await_ready(self, deadline: float = math.inf) -> None: ...

        def freeze(self) -> None: ...

        def take(self, nanoseconds: int, partner: Side, whole_epochs: bool = False) -> Turn:
            wholes[self.name].append(whole_epochs)
            steps = 100 if whole_epochs else max(5, nanoseconds // self.step_ns)
            return Turn(steps, steps * self.step_ns, whole_epochs=whole_epochs, epoch_steps=100)

    found = object.__new__(BesideReference)
    found._side = Paced("candidate", 2_000_000)
    slow = Paced("reference", 30_000_000)
    found._reference = cast(Reference, SimpleNamespace(last=None, side=slow, lost="", ended=False))
    found._draws = random.Random(0)
    rounds = found._turns()
    assert turn_ratio(rounds) is not None
    assert any(wholes["candidate"])
    assert not any(wholes["reference"])


def test_the_last_turns_of_a_reference_that_ends_still_count() -> None:
    class Ready(Short):
        name = "candidate"

        def await_ready(self, deadline: float = math.inf) -> None: ...

        def freeze(self) -> None: ...

    reference = SimpleNamespace(last=None, side=Ready(10, exit_code=0), lost="", ended=True)
    found = object.__new__(BesideReference)
    found._side = cast(Side, Ready(1000, exit_code=0))
    found._reference = cast(Reference, reference)
    found._draws = random.Random(0)
    assert turn_ratio(found._turns()) is not None
    assert reference.lost == "the reference came to its end"
