"""What the launches of a tuning take, and what its budget has room for."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpurun.tuner.plan import kept_for_proof, launched_again, least_for_proof
from gpurun.tuner.screening import Startup
from gpurun.tuner.trial import Trial

COMPILED_BEFORE = 0.7
"""A launch that started in less than this part of the slowest start with the same compiler settings
found in the trials' caches what it needed: the next like it will not be shorter."""
AMPLE = 4
"""Launches of the script as it is, in whose time the first trial of a search surely ends."""


class Timetable:
    """Seconds by the monotonic clock. `batch_to_come`: whether another batch size will be tried.

    `slow_start(knob)`: whether a setting of this name takes time to start, at first above all.
    """

    def __init__(self, deadline: float, slow_start: Callable[[str], bool]) -> None:
        self.budget = deadline - time.monotonic()
        self.batch_to_come = False
        self._deadline = deadline
        self._slow_start = slow_start
        self._whole: Trial | None = None
        self._saved = 0.0
        self._tried = False
        self._longest: dict[tuple[tuple[str, str], ...], float] = {}
        """Seconds of the slowest start, by the settings that take time to start."""

    @property
    def left(self) -> float:
        """What is left of the budget; negative once it is spent."""
        return self._deadline - time.monotonic()

    @property
    def usual(self) -> float:
        """What a launch of the script as it is takes; 0 before the first."""
        return self._whole.record.seconds - self._saved if self._whole is not None else 0.0

    def baseline(self, whole: Trial, started_early: bool) -> None:
        """Learn from the script as it is. `started_early`: whether later processes will be."""
        self._whole, self._saved = whole, 0.0
        if started_early and whole.result is not None:
            self._saved = whole.result.seconds_to_torch or 0.0

    def launched(self, trial: Trial, started_early: bool) -> None:
        """Learn from a trial of the search. `started_early`: whether its process could be."""
        if trial.throughput is None:
            return  # it ended early, or its settings name what does not exist
        self._tried = True
        if slow := self._slow_settings(trial):
            self._longest[slow] = max(self._longest.get(slow, 0.0), _start(trial))
        if started_early:
            self._started_early(trial)

    def _started_early(self, trial: Trial) -> None:
        """Learn what it saves to start a process early: often more than the import of torch."""
        ours = trial.seconds_to_data
        whole = None if self._whole is None else self._whole.seconds_to_data
        if ours is not None and whole is not None:
            self._saved = max(self._saved, whole - ours)

    def again(self, trial: Trial) -> float:
        """What another launch like this one is expected to take."""
        seconds = trial.record.seconds
        slow = self._slow_settings(trial)
        if not slow or _start(trial) < COMPILED_BEFORE * self._longest.get(slow, 0.0):
            return seconds
        return launched_again(seconds, self.usual)

    def _slow_settings(self, trial: Trial) -> tuple[tuple[str, str], ...]:
        settings = trial.record.knobs.items()
        return tuple(sorted((k, str(v)) for k, v in settings if self._slow_start(k)))

    def no_room_to_search(self, best: Trial, startup: Startup) -> bool:
        """Whether a launch with such a start, and the proof after it, would not fit the budget.

        Where steps take seconds nothing would: what is tried first may turn out so fast that its
        own launches hardly count in the shortest proof.
        """
        if not self._tried and best is self._whole:
            return self._beside_proof_of_the_fast() < self.usual + startup.first
        seconds = self.again(best)
        kept = kept_for_proof(self.usual, seconds + startup.later, self.budget)
        return self.left < seconds + startup.first + kept + self._kept_for_batch(best)

    def _kept_for_batch(self, best: Trial) -> float:
        """What a launch of the best settings with another batch takes, which is compiled anew."""
        if not self.batch_to_come or best is self._whole:
            return 0.0
        start = _start(best)
        slowest = self._longest.get(self._slow_settings(best), start)
        return best.record.seconds + max(0.0, slowest - start)

    def room_beside_proof(self) -> float:
        """What is left when the shortest proof has had its time.

        What is tried first may take its time where launches are long: see `no_room_to_search`.
        """
        room = self.left - least_for_proof(self.usual, self.usual)
        if self._tried or room >= AMPLE * self.usual:
            return room
        return self._beside_proof_of_the_fast()

    def _beside_proof_of_the_fast(self) -> float:
        return self.left - least_for_proof(self.usual, 0.0)


def _start(trial: Trial) -> float:
    """Seconds to its pace; all that it took where that is not known."""
    known = None if trial.result is None else trial.result.startup_seconds
    return trial.record.seconds if known is None else known
