"""Launches of every count in turn, round by round, until there are enough or the time is over.

Odd rounds go up through the counts and even ones down. So a steady drift of the machine (clocks,
temperature, other load) cancels for each count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gpurun.formatting.number_text import count
from gpurun.records.spec import StopRule
from gpurun.scaling.finished_launch import FinishedLaunch
from gpurun.scaling.scaling_launcher import ScalingLauncher
from gpurun.scaling.scaling_requests import PlannedLaunch
from gpurun.trials.stop_rules import LEAST_STEPS, MOST_STEPS, WINDOW_SECONDS, first_rule, later_rule

DEFAULT_ROUNDS = 3
"""Fewest that give an interval which is not absurdly wide."""
TOLERANCE = 1.2
"""A launch may take this many times the longest one of its kind until now."""


@dataclass
class Measurements:
    """The launches so far. `launches`: (round, launch), failed ones included, without the first,
    which warms up; `steps`: those measured in each launch."""

    launches: list[tuple[int, FinishedLaunch]] = field(default_factory=list)
    steps: int | None = None
    rounds: int = 0
    """Rounds that were completed."""
    out_of_time: bool = False

    def failure(self, ranks: int) -> FinishedLaunch | None:
        """The launch after which this count was given up."""
        found = (x for _, x in self.launches if x.planned.ranks == ranks and x.error is not None)
        return next((x for x in found if x.planned.exchange), None)

    def of(self, ranks: int, *, exchange: bool = True) -> dict[int, FinishedLaunch]:
        """The launches of use of one kind, by round."""
        return {
            number: x
            for number, x in self.launches
            if (x.planned.ranks, x.planned.exchange) == (ranks, exchange) and x.figures is not None
        }


@dataclass(frozen=True)
class Plan:
    """`counts` rise. `deadline`: no launch begins that would end later, by the clock `now`."""

    counts: tuple[int, ...]
    rounds: int
    steps: int | None
    deadline: float
    now: Callable[[], float] = time.monotonic


@dataclass
class LaunchRounds:
    """Carries the plan out; `measured` stands whatever ends it."""

    launcher: ScalingLauncher
    plan: Plan
    tell: Callable[[str], None]

    def __post_init__(self) -> None:
        self.measured = Measurements()

    def run(self) -> None:
        """Warm up, then measure; a count that fails is given up, and without the smallest all."""
        smallest = self.plan.counts[0]
        self.tell(f"first launch, to warm up: {count(smallest, 'rank')}")
        first = self.launcher.run(PlannedLaunch(smallest, first_rule(self.plan.steps), first=True))
        if first.error is not None:
            self.measured.launches.append((0, first))
            return
        self.measured.steps = self.plan.steps or _steps(first)
        rule = later_rule(self.measured.steps, ())
        for number in range(1, self.plan.rounds + 1):
            if not self._round(number, rule):
                return
            self.measured.rounds = number

    def _round(self, number: int, rule: StopRule) -> bool:
        """Launch each count once; whether the next round may begin."""
        for planned in self._planned_launches(number, rule):
            if not self._in_time(planned.ranks):
                self.measured.out_of_time = True
                return False
            launch = self.launcher.run(planned)
            self.measured.launches.append((number, launch))
            self.tell(_told(number, launch))
            smallest = planned.ranks == self.plan.counts[0]
            if launch.status == "lost" or (launch.error is not None and smallest):
                return False
        return True

    def _planned_launches(self, number: int, rule: StopRule) -> Iterator[PlannedLaunch]:
        counts: Sequence[int] = self.plan.counts
        for ranks in counts if number % 2 else counts[::-1]:
            if self.measured.failure(ranks) is not None:
                continue
            yield PlannedLaunch(ranks, rule)
            done = self.measured.of(ranks).get(number)
            if ranks > 1 and done is not None and done.switchable and self._mute_works(ranks):
                yield PlannedLaunch(ranks, rule, exchange=False)

    def _mute_works(self, ranks: int) -> bool:
        """True if no launch of this count without exchange has failed."""
        return not any(
            x.error is not None and (x.planned.ranks, x.planned.exchange) == (ranks, False)
            for _, x in self.measured.launches
        )

    def _in_time(self, ranks: int) -> bool:
        longest = self.launcher.longest
        usual = longest.get(ranks, max(longest.values()))
        return self.plan.now() + TOLERANCE * usual <= self.plan.deadline


def _steps(first: FinishedLaunch) -> int:
    """Steps that fill the window at the smallest count's pace."""
    assert first.figures is not None
    wanted = math.ceil(WINDOW_SECONDS * 1000.0 / first.figures.step_time_ms)
    return min(max(wanted, LEAST_STEPS), MOST_STEPS)


def _told(number: int, launch: FinishedLaunch) -> str:
    who = count(launch.planned.ranks, "rank") + (
        "" if launch.planned.exchange else ", nothing exchanged"
    )
    if launch.figures is None:
        return f"round {number}, {who}: {launch.error}"
    rate = launch.figures.samples_per_second
    step = f"{launch.figures.step_time_ms:.3g} ms a step"
    shown = step if rate is None else f"{rate:.4g} samples/s, {step}"
    return f"round {number}, {who}: {shown}"
