"""The phases of a tuning's budget: the script as it is, the search, then proof and rungs.

The only forecast is what launches of this tuning took. A launch that comes to the end of its phase
is ended, and its settings are named.
"""

from __future__ import annotations

import time

from gpurun.tuner.trial_length import budget_flag
from gpurun.tuner.tuning_trial import Trial

SEARCH_SHARE = 0.5
"""SPEC: the search may take this part of what the script as it is has left of the budget."""
COMPILED_TIMES = 2
"""SPEC: a first set that is compiled is launched if so many plain launches would fit."""
LATE_SHARE = 0.25
"""SPEC: a pair that has begun may take this part of the budget more."""
PATIENCE_SHARE = 0.25
"""A trial may be silent for this part of the budget at least, up to `MOST_PATIENCE`."""
MOST_PATIENCE = 60.0
LAUNCHES_TO_PROVE = 3
"""A set, and one pair of it with the script as it is."""


class Phases:
    """Seconds by the monotonic clock; `budget`: as the user gave it, None: until `deadline`."""

    def __init__(self, deadline: float, budget: float | None = None) -> None:
        self.budget = budget or deadline - time.monotonic()
        self.usual = 0.0
        """Seconds of the shortest launch of the script as it is; 0 before the first."""
        self.longest = 0.0
        """Seconds of the slowest launch that was measured to its end; of the first one, which may
        have downloaded its data, only until the script as it is was launched again."""
        self.tried = 0
        """Trials of the search that were measured."""
        self.deadline = self._end = deadline
        self._compiled = 0.0
        """Seconds of the last launch with `compile`."""

    @property
    def spent(self) -> float:
        """Seconds since the tuning began."""
        return self.budget - self.left

    @property
    def left(self) -> float:
        """Seconds left of the budget; negative once it is spent."""
        return self.deadline - time.monotonic()

    @property
    def left_of_phase(self) -> float:
        """Seconds left of the present phase."""
        return self._end - time.monotonic()

    @property
    def latest(self) -> float:
        """The end of what may be late, by the monotonic clock."""
        return self.deadline + LATE_SHARE * self.budget

    def may_begin(self, seconds: float) -> bool:
        """True if a pair that takes so long may begin: it may end later than the budget does."""
        return self.left > 0 and self.left + LATE_SHARE * self.budget > seconds

    def launches_left(self, late_share: float = 0.0) -> float:
        """So many launches of the script as it is fit into what is left of the budget.

        `late_share`: with this part of the budget more.
        """
        return (self.left + late_share * self.budget) / max(self.usual, 1e-9)

    @property
    def patience(self) -> float:
        """Seconds for which a trial may be silent: a part of the budget, or four launches."""
        return max(min(MOST_PATIENCE, PATIENCE_SHARE * self.budget), 4 * self.longest)

    def baseline(self, *launches: Trial) -> None:
        """The script as it is was launched, for as long as later trials are."""
        self.usual = min(trial.record.seconds for trial in launches)
        self.longest = launches[-1].record.seconds

    def search_begins(self) -> None:
        """From here on the end is that of the search."""
        self._end = time.monotonic() + SEARCH_SHARE * max(self.left, 0.0)

    def search_ends(self) -> None:
        """From here on all that is left may be used."""
        self._end = self.deadline

    def launched(self, trial: Trial, *, compiled: bool) -> None:
        """A trial of the search ended."""
        if trial.throughput is None:
            return
        self.tried += 1
        self.longest = max(self.longest, trial.record.seconds)
        if compiled:
            self._compiled = trial.record.seconds

    def room(self, *, compiled: bool) -> bool:
        """True if a launch fits into the phase; `compiled`: with `compile` in it.

        As long as nothing was measured there is nothing to prove: a plain launch may then take what
        the proof does not need for its first pair.
        """
        if compiled:
            return self.left_of_phase >= (self._compiled or COMPILED_TIMES * self.usual)
        return self.left_of_phase >= self.usual or (
            not self.tried and self.left >= LAUNCHES_TO_PROVE * self.usual
        )

    def limit(self) -> float:
        """Seconds that a launch of the search may take."""
        return max(self.left_of_phase, COMPILED_TIMES * self.usual)

    def too_small(self) -> str:
        """A line that nothing could be tried to its end, with a budget that is large enough."""
        return (
            f"the budget of {self.budget:.0f} s left no time to try anything to its end: "
            f"a trial takes {self.usual:.0f} s; try `{budget_flag(2 * self.budget)}`"
        )
