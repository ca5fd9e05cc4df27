"""The search for settings that go wrong: alone, together, several, and in few launches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpurun.commands.blame import KnobGroup, culprits
from gpurun.records.command_reports import LaunchState

NAMES = "abcdefgh"


class Machine:
    """Goes wrong under each of some sets of knobs, and counts its distinct launches."""

    def __init__(self, *bad: str, undecided: str = "") -> None:
        self.bad = [set(names) for names in bad]
        self.undecided = set(undecided)
        self.launched: set[frozenset[str]] = set()

    def __call__(self, parts: Sequence[KnobGroup]) -> LaunchState:
        names = {name for part in parts for name in part}
        self.launched.add(frozenset(names))
        if self.undecided and self.undecided <= names:
            return LaunchState.SKIPPED
        wrong = any(names >= one for one in self.bad)
        return LaunchState.BAD if wrong else LaunchState.GOOD


def found(machine: Machine, parts: Sequence[KnobGroup]) -> list[set[str]]:
    sets, _ = culprits(parts, machine)
    return [{name for part in one for name in part} for one in sets]


@pytest.mark.parametrize("bad", NAMES)
def test_one_setting_among_eight_is_found_by_halves(bad: str) -> None:
    machine = Machine(bad)
    assert found(machine, [(name,) for name in NAMES]) == [{bad}]
    assert len(machine.launched) <= 7  # at most two a halving, and one without it


@pytest.mark.parametrize("bad", ["ah", "bc", "dfg"])
def test_settings_that_go_wrong_only_together_are_found_together(bad: str) -> None:
    assert found(Machine(bad), [(name,) for name in NAMES]) == [set(bad)]


def test_several_culprits_are_all_found_and_the_rest_is_good() -> None:
    machine = Machine("b", "fg")
    sets, rest = culprits([(name,) for name in NAMES], machine)
    assert sorted("".join(name for part in one for name in part) for one in sets) == ["b", "fg"]
    assert rest is LaunchState.GOOD


def test_companions_are_never_launched_apart() -> None:
    machine = Machine("b")
    assert found(machine, [("a",), ("b", "c"), ("d",)]) == [{"b", "c"}]
    assert all(("b" in names) == ("c" in names) for names in machine.launched)


def test_one_setting_alone_is_the_culprit() -> None:
    assert found(Machine("a"), [("a",)]) == [{"a"}]


def test_a_launch_that_tells_nothing_counts_as_good() -> None:
    assert found(Machine("a", undecided="ab"), [("a",), ("c",), ("b",)]) == [{"a"}]
