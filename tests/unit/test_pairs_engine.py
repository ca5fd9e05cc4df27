"""The pair engine: live pairs where that can be, else in turn with the reason, and again if one
half was disturbed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from gpurun.bench.benchmark_launcher import Launch
from gpurun.pairs.engine import MOST_AGAIN, NotLive, PairEngine, PairOutcome, ToldOnce
from gpurun.pairs.turn_ratio import TurnRatio
from gpurun.records.failure import Failure, FailureKind
from tests.unit.bench_launches import device, launch

PORT = Failure(FailureKind.EXCEPTION, "OSError: address in use", 1)
OVER = "b ended with exit code 0"
HOT = device("thermal")
Ends = Callable[[str, str], PairOutcome[Launch]]


def live(first: str, second: str) -> PairOutcome[Launch]:
    """What is launched second takes 10 % longer, by turns."""
    ratio = TurnRatio(0.1, 0.01, 40)
    return PairOutcome(launch(first, 1000.0), launch(second, 1000.0), ratio)


def failing(first: str, second: str) -> PairOutcome[Launch]:
    crashed = replace(launch(second, 1.0, error=PORT.text, status="failed"), failure=PORT)
    return PairOutcome(launch(first, 1000.0), crashed, None, PORT.text)


@dataclass
class Machine:
    """Launches that end as they are told to, in their order; `alone` and live otherwise."""

    ends: list[Ends] = field(default_factory=list)
    alone: list[Launch] = field(default_factory=list)
    late: bool = False
    launched: str = ""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine: PairEngine[str, Launch] = PairEngine(
            self._beside,
            self._alone,
            ToldOnce(self.notes.append),
            lambda: -1.0 if self.late else math.inf,
        )

    def _beside(self, first: str, second: str) -> PairOutcome[Launch]:
        self.launched += f"({first}{second})"
        return (self.ends.pop(0) if self.ends else live)(first, second)

    def _alone(self, side: str) -> Launch:
        self.launched += side
        return self.alone.pop(0) if self.alone else launch(side, 1000.0)


def test_the_second_side_is_launched_first_in_a_turned_pair_and_stays_the_second() -> None:
    machine = Machine()
    plain, turned = (machine.engine.take("a", "b", 1, turned=turned) for turned in (False, True))
    assert machine.launched == "(ab)(ba)"
    for pair, log in ((plain, 0.1), (turned, -0.1)):
        assert (pair.first.name, pair.second.name) == ("a", "b")
        assert pair.ratio is not None
        assert pair.ratio.log == log


def test_where_the_first_live_pair_fails_all_are_launched_in_turn_and_it_says_why() -> None:
    machine = Machine([failing])
    pair = machine.engine.take("a", "b", 1, turned=True)
    assert machine.launched == "(ba)ba"
    assert pair.ratio is None
    assert (pair.first.name, pair.second.name) == ("a", "b")
    assert pair.in_turn == f"a live pair failed: {PORT.text}"
    assert machine.engine.take("a", "b", 2, turned=False).in_turn == pair.in_turn
    assert machine.launched == "(ba)baab"


def test_a_live_pair_that_fails_after_one_that_was_measured_is_launched_once_more() -> None:
    machine = Machine([live, failing])
    machine.engine.take("a", "b", 1, turned=False)
    again = machine.engine.take("a", "b", 2, turned=False)
    assert again.ratio is not None
    assert (machine.launched, again.in_turn) == ("(ab)(ab)(ab)", "")

    machine = Machine([live, failing, failing])
    machine.engine.take("a", "b", 1, turned=False)
    assert machine.engine.take("a", "b", 2, turned=False).ratio is None
    assert machine.launched == "(ab)(ab)(ab)ab"


def test_where_it_is_late_a_live_pair_that_fails_starts_no_launches_in_turn_and_says_why() -> None:
    machine = Machine([live, failing])
    machine.engine.take("a", "b", 1, turned=False)
    machine.late = True
    with pytest.raises(NotLive, match=re.escape(f"a live pair failed: {PORT.text}")):
        machine.engine.take("a", "b", 2, turned=False)
    assert machine.launched == "(ab)(ab)", "neither again nor alone"
    pair = machine.engine.take("a", "b", 2, turned=True)
    assert pair.in_turn == "", "live pairs may be tried again"
    assert pair.ratio is not None


def test_a_script_that_ends_before_its_turns_do_is_launched_in_turn() -> None:
    ended = launch("b", 1000.0, status="completed")
    machine = Machine([lambda *_: PairOutcome(launch("a", 1000.0), ended, None, OVER)])
    pair = machine.engine.take("a", "b", 1, turned=False)
    assert pair.in_turn == "the script is over before a live pair is measured"


def test_the_side_that_failed_by_itself_is_the_reason_and_not_its_partner() -> None:
    left = Failure(FailureKind.PARTNER_ENDED, "b ended before the pair was measured")

    def both(first: str, second: str) -> PairOutcome[Launch]:
        one = replace(launch(first, 1.0, status="failed"), failure=left)
        return PairOutcome(one, failing(first, second).second, None, left.text)

    machine = Machine([both, lambda *_: PairOutcome(None, None, None, left.text)])
    pair = machine.engine.take("a", "b", 1, turned=False)
    assert pair.in_turn == f"a live pair failed: {PORT.text}"
    pair = machine.engine.take("a", "c", 2, turned=False)
    assert pair.in_turn == f"a live pair failed: {left.text}"


def test_a_pair_of_which_one_half_was_disturbed_is_measured_again_and_told() -> None:
    def hot(first: str, second: str) -> PairOutcome[Launch]:
        return replace(live(first, second), second=launch(second, 500.0, devices=(HOT,)))

    machine = Machine([hot])
    pair = machine.engine.take("a", "b", 3, turned=False)
    assert machine.launched == "(ab)(ab)"
    assert pair.second.result.devices == ()
    why = "the GPU was throttled in the b half only (thermal)"
    assert machine.notes == [f"pair 3 is measured again: {why}"]


@pytest.mark.parametrize("late", [True, False])
def test_a_disturbed_pair_counts_where_it_always_is_so_or_the_time_is_up(late: bool) -> None:
    machine = Machine(late=late, alone=[launch("b", 500.0, devices=(HOT,)), launch("a", 1.0)] * 99)
    machine.engine.obstacle = lambda first, second: "asked for"
    machine.engine.take("a", "b", 1, turned=True)
    assert machine.launched == "ba" * (1 if late else 1 + MOST_AGAIN)
    assert machine.notes[-1].startswith("pair 1 counts")
    machine.engine.take("a", "b", 2, turned=True)
    assert machine.launched.endswith("ba")
    assert len(machine.launched) == 2 * (2 if late else 2 + MOST_AGAIN)


def test_what_befell_both_halves_is_told_once_and_the_pair_counts() -> None:
    machine = Machine(alone=[launch(side, 1000.0, devices=(HOT,)) for side in "abab"])
    machine.engine.obstacle = lambda first, second: "asked for"
    for number in (1, 2):
        machine.engine.take("a", "b", number, turned=False)
    assert machine.launched == "abab"
    assert machine.notes == ["the GPU was throttled (thermal)"]


def test_a_second_side_that_failed_alone_is_given_back_with_its_pair() -> None:
    crashed = replace(launch("b", 1.0, error="no", devices=(HOT,)), failure=PORT)
    machine = Machine(alone=[launch("a", 1.0), crashed])
    machine.engine.obstacle = lambda first, second: "asked for"
    pair = machine.engine.take("a", "b", 1, turned=False)
    assert pair.second is crashed
    assert (machine.launched, machine.notes) == ("ab", []), "nobody measures that again"


@pytest.mark.parametrize(("turned", "launched"), [(False, "aab"), (True, "baa")])
def test_the_first_side_is_known_to_run_and_is_launched_once_more(
    turned: bool, launched: str
) -> None:
    crashed = replace(launch("a", 1.0, error="no"), failure=PORT)
    alone = [crashed, launch("a", 1000.0)]
    machine = Machine(alone=[launch("b", 1000.0), *alone] if turned else alone)
    machine.engine.obstacle = lambda first, second: "asked for"
    assert machine.engine.take("a", "b", 1, turned=turned).first.failure is None
    assert machine.launched == launched


def test_a_second_side_that_is_known_to_run_is_launched_once_more_too() -> None:
    crashed = launch("b", 1.0, error=PORT.text)
    machine = Machine(alone=[launch("a", 1000.0), crashed, launch("b", 1000.0)])
    machine.engine.obstacle = lambda first, second: "asked for"
    machine.engine.both_run = True
    assert machine.engine.take("a", "b", 1, turned=False).second.failure is None
    assert machine.launched == "abb"
    assert machine.notes == [f"a b launch failed, and is launched again: {PORT.text}"]


def test_an_obstacle_of_one_pair_is_none_of_the_next() -> None:
    machine = Machine()
    machine.engine.obstacle = lambda first, second: "too large" if second == "c" else ""
    assert machine.engine.take("a", "c", 1, turned=False).in_turn == "too large"
    assert machine.engine.take("a", "b", 2, turned=False).in_turn == ""
    assert machine.launched == "ac(ab)"


def test_a_live_pair_that_fails_takes_none_from_other_requests() -> None:
    machine = Machine([failing])
    assert machine.engine.take("a", "c", 1, turned=False).in_turn
    assert machine.engine.take("a", "b", 2, turned=False).in_turn == ""
    assert machine.engine.take("a", "c", 3, turned=True).in_turn
    assert machine.launched == "(ac)ac(ab)ca"
