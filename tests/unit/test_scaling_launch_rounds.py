"""The course of a measurement: whose turn it is, what is left out, and when it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpurun.records.spec import StopRule
from gpurun.scaling.finished_launch import FinishedLaunch
from gpurun.scaling.launch_rounds import LaunchRounds, Measurements, Plan
from gpurun.scaling.scaling_requests import PlannedLaunch
from tests.unit.scaling_launches import failure, launch


@dataclass
class Recorded:
    """Stands for the launcher: the outcome of each planned launch, and the turns they took."""

    outcome: Callable[[PlannedLaunch], FinishedLaunch] = launch
    longest: dict[int, float] = field(default_factory=dict)
    turns: list[str] = field(default_factory=list)
    rules: list[StopRule] = field(default_factory=list)

    def run(self, planned: PlannedLaunch) -> FinishedLaunch:
        mark = "*" if planned.first else "" if planned.exchange else "-"
        self.turns.append(f"{planned.ranks}{mark}")
        self.rules.append(planned.rule)
        self.longest.setdefault(planned.ranks, 5.0)
        return self.outcome(planned)


def run(
    *counts: int, outcome: Callable[[PlannedLaunch], FinishedLaunch] = launch, **changes: Any
) -> tuple[Recorded, Measurements]:
    plan = {"rounds": 3, "steps": None, "deadline": math.inf, **changes}
    launcher = Recorded(outcome)
    rounds = LaunchRounds(launcher, Plan(counts, **plan), print)  # type: ignore[arg-type]
    rounds.run()
    return launcher, rounds.measured


def fixed(planned: PlannedLaunch) -> FinishedLaunch:
    """What a script exchanges without DistributedDataParallel is not ours to leave out."""
    return launch(planned, switchable=False)


def test_counts_take_turns_up_and_down_after_a_first_launch() -> None:
    launcher, measured = run(1, 2, 4, outcome=fixed)
    assert launcher.turns == ["1*", "1", "2", "4", "4", "2", "1", "1", "2", "4"]
    assert measured.rounds == 3
    assert sorted(measured.of(4)) == [1, 2, 3]


def test_each_launch_is_followed_by_one_that_exchanges_nothing() -> None:
    launcher, measured = run(1, 2, 4, rounds=1)
    assert launcher.turns == ["1*", "1", "2", "2-", "4", "4-"]
    assert sorted(measured.of(4, exchange=False)) == [1]


def test_all_ranks_of_all_launches_stop_after_the_same_number_of_steps() -> None:
    launcher, measured = run(1, 2, outcome=lambda planned: launch(planned, step_ms=80.0))
    assert measured.steps == 50  # 4 s of them
    later = set(launcher.rules[1:])
    assert len(later) == 1
    rule = later.pop()
    assert rule.min_steps == rule.max_steps == 50 + rule.warmup_steps
    assert rule.min_seconds == 0


def test_a_count_that_fails_is_not_launched_again_and_the_others_are() -> None:
    def outcome(planned: PlannedLaunch) -> FinishedLaunch:
        return (
            failure(planned, "oom", "out of memory on rank 3")
            if planned.ranks == 4
            else fixed(planned)
        )

    launcher, measured = run(1, 4, 2, outcome=outcome)
    assert launcher.turns.count("4") == 1
    assert launcher.turns.count("2") == 3
    found = measured.failure(4)
    assert found is not None
    assert found.error == "out of memory on rank 3"


def test_a_launch_without_exchange_that_fails_costs_only_itself() -> None:
    launcher, measured = run(
        1, 2, outcome=lambda planned: launch(planned) if planned.exchange else failure(planned)
    )
    assert launcher.turns.count("2") == 3
    assert launcher.turns.count("2-") == 1
    assert measured.failure(2) is None


@pytest.mark.parametrize("first", [True, False])
def test_without_the_smallest_count_there_is_nothing_to_compare_with(first: bool) -> None:
    launcher, measured = run(
        2,
        4,
        outcome=lambda planned: failure(planned) if planned.first is first else launch(planned),
    )
    assert launcher.turns == ["2*"] if first else ["2*", "2"]
    assert measured.failure(2) is not None


def test_no_launch_begins_that_would_end_after_the_budget() -> None:
    launcher, measured = run(1, 2, deadline=time.monotonic() + 4)
    assert launcher.turns == ["1*"]
    assert measured.out_of_time
    assert measured.failure(1) is None
