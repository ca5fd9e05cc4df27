"""The pair engine: takes pairs of launches, live where that can be, else in turn with the reason.

What it is given makes the launches; what it gives is decided by `gain.py` and `gate.py`. Retries,
the fallback to launches in turn, and pairs that are measured again because something befell one
half of them exist here alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gpurun.pairs.disturbance import disturbance, trouble_of_both
from gpurun.pairs.turn_ratio import TurnRatio
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.result import RunResult

MOST_AGAIN = 8
"""Pairs that are measured again because something befell one half; further ones count."""


class Launched(Protocol):
    """A finished launch, as a tuning or a benchmark keeps it."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def result(self) -> RunResult | None:
        """Its figures; None where nothing was recorded."""

    @property
    def failure(self) -> Failure | None:
        """Why it is of no use; None where it was measured."""

    @property
    def whole(self) -> bool:
        """True if the script ended by itself."""


Request = TypeVar("Request")
Side = TypeVar("Side", bound=Launched)
Started = TypeVar("Started")
"""An outcome, or what a tuning or a benchmark makes of it."""


@dataclass(frozen=True)
class PairOutcome(Generic[Started]):
    """Both sides of a live pair, and the ratio of their step times, second over first.

    `failure`: why there is no ratio; None where there is one. The sides are None where nothing was
    launched. `seconds`: what the pair took.
    """

    first: Started | None
    second: Started | None
    ratio: TurnRatio | None
    failure: Failure | None
    seconds: float = 0.0


class NotLive(Exception):
    """A pair that must be live cannot be; the text says why."""


@dataclass(frozen=True)
class Pair(Generic[Side]):
    """Two launches that belong together. `ratio`: step time of the second over the first one's, by
    turns; None where they were launched in turn."""

    first: Side
    second: Side
    ratio: TurnRatio | None = None

    @property
    def turned(self) -> Pair[Side]:
        """The same pair with its second launch first."""
        ratio = None if self.ratio is None else self.ratio.turned
        return Pair(self.second, self.first, ratio)


@dataclass
class PairEngine(Generic[Request, Side]):
    """Takes the pairs of one comparison, proof or search.

    `beside` launches two as a live pair, `alone` one. `in_turn`: why pairs are launched in turn, ""
    while they are live; `live_only`: `NotLive` is raised instead, as it is when a live pair fails
    and it is `late`: there is no time to measure one again. `note` hears, once each, what disturbed
    pairs.
    """

    beside: Callable[[Request, Request], PairOutcome[Side]]
    alone: Callable[[Request], Side]
    note: Callable[[str], None]
    late: Callable[[], bool] = lambda: False
    in_turn: str = ""
    live_only: bool = False
    _has_live: bool = False
    _again: int = 0
    _noted: frozenset[str] = frozenset()

    def take(self, first: Request, second: Request, number: int, *, turned: bool) -> Pair[Side]:
        """The pair of this number, measured again where something befell one half of it.

        `turned`: the second is launched first, as in every other pair: a drift of the machine, and
        the luck of what is launched second, then affect both alike.
        """
        while True:
            pair = self._take(second, first).turned if turned else self._take(first, second)
            results = [one.result for one in (pair.first, pair.second) if one.result is not None]
            if len(results) < 2 or pair.first.failure or pair.second.failure:
                return pair
            names, live = (pair.first.name, pair.second.name), pair.ratio is not None
            cause = disturbance(results, names, live=live)
            again = cause is not None and self._again < MOST_AGAIN and not self.late()
            if cause is not None:
                what = "is measured again" if again else "counts all the same"
                self._tell(f"pair {number} {what}: {cause}")
            if again:
                self._again += 1
                continue
            if (trouble := trouble_of_both(results, live=live)) is not None:
                self._tell(trouble)
            return pair

    def _take(self, first: Request, second: Request) -> Pair[Side]:
        """Live, or in this order. A live pair that fails after one that was measured is launched
        once more: launches in turn would begin anew."""
        in_turn = self.in_turn
        for number in range(0 if in_turn else 1 + self._has_live):
            if number and self.late():
                break
            both = self.beside(first, second)
            if both.failure is None and both.first is not None and both.second is not None:
                if both.first.failure is None and both.second.failure is None:
                    self._has_live = True
                    return Pair(both.first, both.second, both.ratio)
            in_turn = why_in_turn(both)
        if self.live_only or (in_turn and not self.in_turn and self.late()):
            raise NotLive(in_turn)  # no time for launches in turn, which begin anew
        one = self.alone(first)
        self.in_turn = in_turn
        return Pair(one, self.alone(second))

    def _tell(self, line: str) -> None:
        if line not in self._noted:
            self._noted |= {line}
            self.note(line)


def why_in_turn(both: PairOutcome[Side]) -> str:
    """Why launches are to follow one another after a live pair that failed."""
    sides = [launch for launch in (both.first, both.second) if launch is not None]
    if any(launch.whole for launch in sides):
        return "the script is over before a live pair is measured"
    failures = [launch.failure for launch in sides if launch.failure is not None]
    own = [x.text for x in failures if x.kind is not FailureKind.PARTNER_ENDED]
    what = "" if both.failure is None else both.failure.text
    return f"a live pair failed: {own[0] if own else what}"
