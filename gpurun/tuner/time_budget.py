"""Expected times of a tuning's launches, and whether its budget has room for them."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpurun.tuner.search.screening import StartupSeconds
from gpurun.tuner.trial_length import SCREEN_SHARE, budget_flag, launched_again
from gpurun.tuner.tuning_trial import Trial

LEAST_PAIRS = 2
"""The gain test claims nothing of fewer pairs."""
LEAST_LAUNCHES = 2 + 1 + 2 * LEAST_PAIRS
"""The shortest tuning: two of the script as it is, one value, both sides of the proof's pairs."""
PROOF_SHARE = 0.5
"""SPEC: the search of what is to be proven ends when this part is left of what the script as it is
left of the budget."""
COMPILED_BEFORE = 0.7
"""A launch that started in less than this part of the slowest start with the same compiler settings
found in the trials' caches what it needed: the next like it will not be shorter."""
AMPLE = 4
"""Launches of the script as it is, in whose time the first trial of a search surely ends."""
DISTURBED = 2.0
"""A launch that took so many times as long as most others was disturbed: the next one will not."""


class TimeBudget:
    """Seconds by the monotonic clock. `batch_to_come`: whether another batch size will be tried.

    `slow_start(knob)`: whether a setting of this name takes time to start, at first above all.
    `pair_seconds`: what the last pair of the proof took, 0 before the first. `proven`: whether the
    finalist's proof is over, so that a further one may have all that is left. `deadline`: its end.
    """

    def __init__(
        self,
        deadline: float,
        slow_start: Callable[[str], bool],
        budget: float | None = None,
    ) -> None:
        """`budget`: as the user gave it, a part of which may be spent; None: all that is left."""
        self.budget = budget or deadline - time.monotonic()
        self.batch_to_come = False
        self.pair_seconds = 0.0
        self.proven = False
        self.deadline = deadline
        self._for_proof = 0.0
        """Seconds that the search leaves for the proof of what it found."""
        self._slow_start = slow_start
        self._whole: Trial | None = None
        self._whole_seconds = 0.0
        self._saved = 0.0
        self._kept = 0.0
        """Seconds that were last kept for the proof of something that the search had found."""
        self.tried = False
        """True once a trial of the search was measured."""
        self._in_vain = 0
        """Trials of the search that were not."""
        self.longest = 0.0
        """Seconds of the slowest launch that was measured to its end."""
        self._seconds: list[float] = []
        """Seconds of the launches that compile nothing."""
        self._longest: dict[tuple[tuple[str, str], ...], float] = {}
        """Seconds of the slowest start, by the settings that take time to start."""

    def too_small(self) -> str:
        """A line that nothing could be tried to its end, with a budget that is large enough."""
        needed = max(2 * LEAST_LAUNCHES * self.longest, 2 * self.budget)
        flag = budget_flag(needed)
        if self._in_vain:
            return (
                f"the budget of {self.budget:.0f} s ended before a trial of other settings was "
                f"measured, {self._in_vain} failed; try `{flag}`"
            )
        return (
            f"the budget of {self.budget:.0f} s left no time to try anything: "
            f"a trial takes {self.longest:.0f} s; try `{flag}`"
        )

    @property
    def spent(self) -> float:
        """Seconds since the tuning began."""
        return self.budget - self.left

    @property
    def left(self) -> float:
        """Seconds left of the budget; negative once it is spent."""
        return self.deadline - time.monotonic()

    @property
    def usual(self) -> float:
        """Seconds of a launch of the script as it is; 0 before the first."""
        return max(self._whole_seconds - self._saved, self._whole_seconds / AMPLE)

    def baseline(
        self, whole: Trial, started_early: bool, probe: Trial | None = None, aside: float = 0.0
    ) -> None:
        """Learn from the script as it is. `started_early`: whether later processes will be.

        `probe`: its first launch. The one that was less disturbed says what a launch takes.
        `aside`: seconds that only this launch took.
        """
        self._whole, self._saved = whole, 0.0
        self._for_proof = PROOF_SHARE * self.left
        self.longest = max(self.longest, whole.record.seconds)
        self._whole_seconds = whole.record.seconds
        if probe is not None and probe.result is not None and whole.result is not None:
            more = max(0, whole.result.steps - probe.result.steps)
            expected = probe.record.seconds + more * _step(probe)
            self._whole_seconds = min(whole.record.seconds, expected) - aside
        if started_early and whole.result is not None:
            self._saved = whole.result.seconds_to_torch or 0.0

    def launched(self, trial: Trial, started_early: bool) -> None:
        """Learn from a trial of the search. `started_early`: whether its process could be."""
        if trial.throughput is None:
            self._in_vain += 1
            return  # it ended early, or its settings name what does not exist
        self.tried = True
        self.longest = max(self.longest, trial.record.seconds)
        if slow := self._slow_settings(trial):
            self._longest[slow] = max(self._longest.get(slow, 0.0), _start(trial))
        else:
            self._seconds.append(trial.record.seconds)
        if started_early:
            self._started_early(trial)

    def _started_early(self, trial: Trial) -> None:
        """Learn what it saves to start a process early: often more than the import of torch."""
        ours = trial.seconds_to_data
        whole = None if self._whole is None else self._whole.seconds_to_data
        if ours is not None and whole is not None:
            self._saved = max(self._saved, whole - ours)

    def again(self, trial: Trial) -> float:
        """Expected seconds of another launch like this one."""
        seconds = trial.record.seconds
        slow = self._slow_settings(trial)
        if not slow:
            return min(seconds, DISTURBED * self._typical(seconds))
        if _start(trial) < COMPILED_BEFORE * self._longest.get(slow, 0.0):
            return seconds
        return launched_again(seconds, self.usual)

    def _typical(self, otherwise: float) -> float:
        """The lower median of launches that compile nothing, the script as it is among them."""
        known = sorted([*self._seconds, *([self.usual] if self._whole is not None else [])])
        return known[(len(known) - 1) // 2] if known else otherwise

    def _slow_settings(self, trial: Trial) -> tuple[tuple[str, str], ...]:
        settings = trial.record.knobs.items()
        return tuple(sorted((k, str(v)) for k, v in settings if self._slow_start(k)))

    # -- the proof -----------------------------------------------------------------------------

    def round_of(self, best: Trial, later: float = 0.0) -> float:
        """Seconds of a pair of the proof: what the last one took; before it, a launch of each side.

        The start of these settings takes `later` longer.
        """
        return (self.pair_seconds or self.usual + self.again(best)) + later

    def no_room_to_search(self, best: Trial, startup: StartupSeconds) -> bool:
        """True if a launch with such a start, and the proof after it, would not fit the budget.

        Where launches are long nothing would. So what is tried first needs no more room than itself
        and a launch after it: a proof that the budget cuts off is gone on with the next time. For
        that reason it is enough to keep what lets the first round begin as long as nothing was
        found.
        """
        if startup.first > 0 and self.usual + startup.first > self._screen_share:
            return True
        if not self.tried and self._is_whole(best):
            return self.left - self.usual < self.usual + startup.first
        kept = self.usual  # so that a first pair begins
        if self.proven:
            kept = LEAST_PAIRS * self.round_of(best, startup.later)
        elif not self._is_whole(best):
            kept = self._kept = self._for_proof
        needed = self.again(best) + startup.first
        return self.left < needed + kept + self._kept_for_batch(best)

    def _is_whole(self, trial: Trial) -> bool:
        """True for the launch of the script as it is, also once its gain of 1 was noted."""
        return self._whole is not None and trial.record.number == self._whole.record.number

    def _kept_for_batch(self, best: Trial) -> float:
        """Expected seconds of the best settings with another batch, which compile anew."""
        if not self.batch_to_come or self._is_whole(best):
            return 0.0
        start = _start(best)
        slowest = self._longest.get(self._slow_settings(best), start)
        return self.again(best) + max(0.0, slowest - start)

    def screen_limit(self) -> float:
        """Seconds that the next trial of the search may take before it is given up.

        A share of the budget, and no more than the proof leaves: what is kept for it, and what lets
        its first round begin as long as nothing was found. The first trial may take its time if
        launches are long: see `no_room_to_search`.
        """
        room = self.left - max(self.usual, 0.0 if self.proven else self._kept)
        if not self.tried and room < AMPLE * self.usual:
            room = self.left - self.usual
        return max(min(room, self._screen_share), DISTURBED * self.usual)

    @property
    def _screen_share(self) -> float:
        return SCREEN_SHARE * self.budget


def _step(trial: Trial) -> float:
    """Seconds of its usual step; 0 where that is not known."""
    times = None if trial.result is None else trial.result.step_time_ms
    return 0.0 if times is None else times.p50 / 1000


def _start(trial: Trial) -> float:
    """Seconds to its pace; all that it took where that is not known."""
    known = None if trial.result is None else trial.result.startup_seconds
    return trial.record.seconds if known is None else known
