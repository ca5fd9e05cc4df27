"""The pair engine: takes pairs of launches, live where that can be, else in turn with the reason.

What it is given makes the launches; what it gives is decided by `gain.py` and `gate.py`. Retries,
the fallback to launches in turn, and pairs that are measured again because something befell one
half of them exist here alone. A disturbance is seen by records, never by timing: pairs that are
dropped for their figures would bias the verdict.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from gpurun.measure.machine import CROWDED, crowd_out
from gpurun.measure.optional_figures import known
from gpurun.pairs.turn_ratio import TurnRatio
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.result import RunResult
from gpurun.records.samples import POWER_CAP

MOST_AGAIN = 8
"""Pairs that are measured again because something befell one half; further ones count."""
WAITS_APART = 3.0
"""Percent of the measured time: where one half waited so much more for cores, it was disturbed."""


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
    """Both sides of a live pair, None where nothing was launched, and the ratio of their step
    times, second over first. `failure`: why there is no ratio, "" where there is one."""

    first: Started | None
    second: Started | None
    ratio: TurnRatio | None
    failure: str = ""


class ToldOnce:
    """Tells lines, each of them once, and keeps them in `lines`."""

    def __init__(self, tell: Callable[[str], None], lines: list[str] | None = None) -> None:
        self.lines: list[str] = [] if lines is None else lines
        self._tell = tell

    def __call__(self, line: str) -> None:
        """Tell it, unless it was told."""
        if line not in self.lines:
            self.lines.append(line)
            self._tell(line)


class NotLive(Exception):
    """A live pair failed, for the reason of the text, and there is no time for launches in turn."""


@dataclass(frozen=True)
class Pair(Generic[Side]):
    """Two launches that belong together. `ratio`: step time of the second over the first one's, by
    turns; None where they were launched in turn, for the reason `in_turn`."""

    first: Side
    second: Side
    ratio: TurnRatio | None = None
    in_turn: str = ""

    @property
    def turned(self) -> Pair[Side]:
        """The same pair with its second launch first."""
        ratio = None if self.ratio is None else self.ratio.turned
        return Pair(self.second, self.first, ratio, self.in_turn)


@dataclass
class PairEngine(Generic[Request, Side]):
    """Takes the pairs of one comparison, proof or search.

    `beside` launches two as a live pair, `alone` one. `obstacle`: why two requests cannot be live,
    "" if they can. A live pair that fails, and then runs in turn, is the obstacle of all later
    pairs of these two; `key` is what a request has in common with a later one of the same launch.
    `left`: seconds until no further pair may begin. `both_run`: the second of a pair is known to
    run, too. `note` hears what disturbed pairs. `seconds`: what the last pair took.
    """

    beside: Callable[[Request, Request], PairOutcome[Side]]
    alone: Callable[[Request], Side]
    note: Callable[[str], None]
    left: Callable[[], float] = lambda: math.inf
    obstacle: Callable[[Request, Request], str] = lambda first, second: ""
    key: Callable[[Request], object] = lambda request: request
    both_run: bool = False
    seconds: float = 0.0
    _in_turn: dict[tuple[object, object], str] = field(default_factory=dict)
    _has_live: bool = False
    _again: int = 0

    @property
    def late(self) -> bool:
        """True if there is no time for a pair that takes as long as the last one."""
        return self.left() < self.seconds

    def take(self, first: Request, second: Request, number: int, *, turned: bool) -> Pair[Side]:
        """The pair of this number, measured again where something befell one half of it; or
        `NotLive`.

        `first`: what the second is compared with, and known to run. `turned`: the second is
        launched first, as in every other pair: a drift of the machine, and the luck of what is
        launched second, then affect both alike.
        """
        while True:
            began = time.monotonic()
            pair = self._take(first, second, turned)
            self.seconds = time.monotonic() - began
            results = [one.result for one in (pair.first, pair.second) if one.result is not None]
            if len(results) < 2 or pair.first.failure or pair.second.failure:
                return pair
            names, live = (pair.first.name, pair.second.name), pair.ratio is not None
            cause = disturbance(results, names, live=live)
            again = cause is not None and self._again < MOST_AGAIN and not self.late
            if cause is not None:
                what = "is measured again" if again else "counts all the same"
                self.note(f"pair {number} {what}: {cause}")
            if again:
                self._again += 1
                continue
            if (trouble := trouble_of_both(results, live=live)) is not None:
                self.note(trouble)
            return pair

    def _take(self, first: Request, second: Request, turned: bool) -> Pair[Side]:
        """Live if it can be. A live pair that fails after one that was measured is launched once
        more: its failure may be chance."""
        order = (second, first) if turned else (first, second)
        names = (self.key(first), self.key(second))
        in_turn = self._in_turn.get(names) or self.obstacle(first, second)
        possible = not in_turn
        for number in range(1 + self._has_live if possible else 0):
            if number and self.late:
                break
            both = self.beside(*order)
            if (pair := _measured(both)) is not None:
                self._has_live = True
                return pair.turned if turned else pair
            in_turn = why_in_turn(both)
        if possible and self.late:
            raise NotLive(in_turn)
        one, other = (self._alone(request, request is first) for request in order)
        if possible and one.failure is None and other.failure is None:
            self._in_turn[names] = in_turn
        pair = Pair(one, other, in_turn=in_turn)
        return pair.turned if turned else pair

    def _alone(self, request: Request, is_first: bool) -> Side:
        """A launch; once more if it fails and is known to run: that may be chance."""
        launch = self.alone(request)
        if launch.failure is None or not (is_first or self.both_run):
            return launch
        self.note(f"a {launch.name} launch failed, and is launched again: {launch.failure.text}")
        return self.alone(request)


def _measured(both: PairOutcome[Side]) -> Pair[Side] | None:
    first, second = both.first, both.second
    if first is None or second is None or first.failure or second.failure or both.failure:
        return None
    return Pair(first, second, both.ratio)


def why_in_turn(both: PairOutcome[Side]) -> str:
    """Why launches are to follow one another after a live pair that failed."""
    sides = [launch for launch in (both.first, both.second) if launch is not None]
    if any(launch.whole for launch in sides):
        return "the script is over before a live pair is measured"
    failures = [launch.failure for launch in sides if launch.failure is not None]
    own = [x.text for x in failures if x.kind is not FailureKind.PARTNER_ENDED]
    return f"a live pair failed: {own[0] if own else both.failure}"


def disturbance(results: Sequence[RunResult], names: Sequence[str], *, live: bool) -> str | None:
    """Why a pair says nothing: what befell one half of it alone. The half is named as its launch.

    In a `live` pair a wait for cores falls on both sides' turns, and a side that alone reaches the
    power cap does so by its own work.
    """
    throttled = [_throttled(result) for result in results]
    for name, own, of_other in zip(names, throttled, throttled[::-1], strict=True):
        alone = own - of_other - ({POWER_CAP} if live else set())
        if alone:
            return f"the GPU was throttled in the {name} half only ({', '.join(sorted(alone))})"
    beside = [_foreign(result) for result in results]
    if None not in beside and any(beside) and not all(beside):
        half = names[0] if beside[0] else names[1]
        return f"another process computed on the GPU in the {half} half only"
    waits = known(result.cores_lost_percent for result in results)
    if not live and len(waits) == 2 and abs(waits[0] - waits[1]) > WAITS_APART:
        return (
            f"the {names[waits.index(max(waits))]} half waited for cores for {max(waits):.0f} % of "
            f"its time, and the other for {min(waits):.0f} %"
        )
    return None


def trouble_of_both(results: Sequence[RunResult], *, live: bool) -> str | None:
    """A disturbance of both halves of a pair: the pair counts, and a note names the cause.

    Both sides of a `live` pair share the GPU: the one that draws less power cools it for the other.
    """
    if all(_foreign(result) for result in results):
        return "another process computed on the GPU throughout"
    first, second = map(_throttled, results)
    if throttled := first | second if live else first & second:
        return f"the GPU was throttled ({', '.join(sorted(throttled))})"
    return CROWDED if live and crowd_out(list(results)) else None


def _throttled(result: RunResult) -> set[str]:
    return {reason for device in result.devices for reason in device.throttle_reasons}


def _foreign(result: RunResult) -> int | None:
    counts = [d.foreign_processes for d in result.devices if d.foreign_processes is not None]
    return max(counts, default=None)
