"""Runs pairs of launches: live if possible, else in turn, with the reason.

In a live pair both launches take turns of some steps, one frozen while the other trains. Scripts
that fail beside a partner but work alone (a fixed port, a lock, memory for one) are launched in
turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpurun.bench.benchmark_launcher import Launch, Launcher
from gpurun.bench.trees.prepared_sides import Side
from gpurun.isolation.isolation_mode import Mode
from gpurun.measure.optional_figures import known
from gpurun.records.failure import FailureKind
from gpurun.records.spec import StopRule
from gpurun.trials.live_pair_obstacle import live_pair_obstacle, peaks_of
from gpurun.trials.outcome import PairOutcome
from gpurun.trials.turn_ratio import TurnRatio


@dataclass(frozen=True)
class MeasuredPair:
    """Two launches that belong together. `ratio`: step time of the second over the first one's, by
    turns; None where they were launched in turn."""

    first: Launch
    second: Launch
    ratio: TurnRatio | None = None

    @property
    def turned(self) -> MeasuredPair:
        """The same pair with its second launch first."""
        ratio = self.ratio
        return MeasuredPair(self.second, self.first, None if ratio is None else ratio.turned)


class PairLauncher:
    """Takes the pairs of one comparison or search.

    `in_turn`: why pairs are launched in turn, "" while they are live.
    """

    def __init__(self, launcher: Launcher, in_turn: str = "") -> None:
        self.in_turn = in_turn
        self._launcher = launcher
        self._has_live = False

    @property
    def why(self) -> str:
        """The reason why pairs are launched in turn, in one line."""
        return f"launches one after the other, not live pairs: {self.in_turn}"

    @property
    def expected(self) -> float:
        """Seconds that another pair may take."""
        return 2 * self._launcher.expected if self.in_turn else self._launcher.expected_pair

    def consider(self, first: Sequence[Launch]) -> None:
        """Decide by launches that ran alone, one of each side, whether pairs can be live."""
        if not self.in_turn:
            self.in_turn = obstacle(first, self._launcher.mode)

    def take(
        self,
        starts: tuple[Side, Side],
        rule: StopRule,
        refuse: Callable[[Launch], None] = lambda launch: None,
    ) -> MeasuredPair:
        """One pair; `rule`: of launches in turn, which are launched in this order.

        After a live pair that was measured, one that fails is launched once more: launches in turn
        would begin anew. `refuse` is given each launch that ended alone, and may raise: then no
        other one follows.
        """
        in_turn = self.in_turn
        for _ in range(0 if in_turn else 1 + self._has_live):
            both = self._launcher.run_pair(starts, rule)
            if both.failure is None and both.first is not None and both.second is not None:
                if not both.first.error and not both.second.error:
                    self._has_live = True
                    return MeasuredPair(both.first, both.second, both.ratio)
            in_turn = _why_in_turn(both)
        launches = []
        for start in starts:
            launches.append(self._launcher.run(start, rule))
            refuse(launches[-1])
        self.in_turn = in_turn
        return MeasuredPair(launches[0], launches[1])


def obstacle(first: Sequence[Launch], mode: Mode) -> str:
    """Why launches like these cannot be live pairs, "" if they can."""
    if mode is Mode.IN_PLACE:
        return "launches work on the real files"
    if any(launch.whole for launch in first):
        return "the script is over too soon to take turns"
    results = [launch.result for launch in first]
    gpus = known(d.memory_total_bytes for result in results for d in result.devices)
    return live_pair_obstacle(results, list(map(peaks_of, results)), min(gpus, default=None))


def _why_in_turn(both: PairOutcome[Launch]) -> str:
    """Why launches are to follow one another after a live pair that failed."""
    sides = [launch for launch in (both.first, both.second) if launch is not None]
    if any(launch.whole for launch in sides):
        return "the script is over before a live pair is measured"
    failures = [launch.failure for launch in sides if launch.failure is not None]
    own = [x.text for x in failures if x.kind is not FailureKind.PARTNER_ENDED]
    what = "" if both.failure is None else both.failure.text
    return f"a live pair failed: {own[0] if own else what}"
